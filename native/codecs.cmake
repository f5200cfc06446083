# The target penstock_codecs: zstd, lz4, libdeflate, libjpeg-turbo, libpng and libwebp, of the system or built here for wheels.
add_library(penstock_codecs INTERFACE)

if(PENSTOCK_SYSTEM_CODECS)
  set(missing "")
  foreach(codec "zstd zstd.h libzstd-dev" "lz4 lz4hc.h liblz4-dev" "deflate libdeflate.h libdeflate-dev"
                "jpeg jpeglib.h libjpeg-dev" "png png.h libpng-dev" "webp webp/decode.h libwebp-dev")
    separate_arguments(codec)
    list(GET codec 0 name)
    list(GET codec 1 header)
    list(GET codec 2 package)
    find_library(PENSTOCK_${name}_LIBRARY ${name})
    find_path(PENSTOCK_${name}_INCLUDE ${header})
    if(PENSTOCK_${name}_LIBRARY AND PENSTOCK_${name}_INCLUDE)
      target_link_libraries(penstock_codecs INTERFACE ${PENSTOCK_${name}_LIBRARY})
    else()
      string(APPEND missing " ${package}")
    endif()
  endforeach()
  if(missing)
    message(FATAL_ERROR "a build of penstock from source needs zstd, lz4, libdeflate, libjpeg-turbo, libpng and libwebp; on Debian or Ubuntu: "
                        "apt-get install${missing}\n(the wheels have them inside: pip install --only-binary penstock penstock)")
  endif()
  return()
endif()

set(sources ${PENSTOCK_CODEC_SOURCES})
if(NOT EXISTS ${sources}/zstd/zstd.c)
  message(FATAL_ERROR "PENSTOCK_SYSTEM_CODECS=OFF needs PENSTOCK_CODEC_SOURCES: "
                      "python tools/codec_sources.py build/codecs, then -DPENSTOCK_CODEC_SOURCES=<absolute path of build/codecs>")
endif()
enable_language(C)
file(GLOB deflate_sources ${sources}/libdeflate/lib/*.c ${sources}/libdeflate/lib/*/*.c)  # fetched and checked, so no list here
add_library(penstock_codec_objects STATIC ${sources}/zstd/zstd.c ${sources}/lz4/lz4.c ${sources}/lz4/lz4hc.c ${deflate_sources})
# Nothing of them can be seen from outside the module: another zstd in the same process is another zstd. Their own marks of what
# is public are turned off, or would win over the preset.
target_compile_definitions(penstock_codec_objects PRIVATE ZSTDLIB_VISIBLE= ZSTDERRORLIB_VISIBLE= ZDICTLIB_VISIBLE= LZ4LIB_VISIBILITY=)
set_target_properties(penstock_codec_objects PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
target_include_directories(penstock_codec_objects PRIVATE ${sources}/libdeflate)
target_link_libraries(penstock_codecs INTERFACE penstock_codec_objects)
target_include_directories(penstock_codecs SYSTEM INTERFACE ${sources}/zstd ${sources}/lz4 ${sources}/libdeflate)
if(SKBUILD)  # the licences of what is inside
  foreach(library zstd lz4 libdeflate)
    install(FILES ${sources}/${library}/LICENSE DESTINATION ${SKBUILD_METADATA_DIR}/licenses/${library})
  endforeach()
endif()
