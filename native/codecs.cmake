# The target penstock_codecs: zstd, lz4, libdeflate, libjpeg-turbo, libpng and libwebp, of the system or built here for wheels.
add_library(penstock_codecs INTERFACE)

if(PENSTOCK_SYSTEM_CODECS)
  set(missing "")
  foreach(codec "zstd zstd.h libzstd-dev" "lz4 lz4hc.h liblz4-dev" "deflate libdeflate.h libdeflate-dev"
                "jpeg jpeglib.h libjpeg62-turbo-dev" "png png.h libpng-dev" "webp webp/decode.h libwebp-dev")
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
    message(FATAL_ERROR "a build of penstock from source needs zstd, lz4, libdeflate, libjpeg-turbo, libpng and libwebp; on Debian: "
                        "apt-get install${missing}\n(the wheels have them inside: pip install --only-binary penstock penstock)")
  endif()
  return()
endif()

include(${CMAKE_CURRENT_LIST_DIR}/bundled_codecs.cmake)
