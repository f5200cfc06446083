# The codecs for wheels, built from what tools/codec_sources.py fetched: static, position-independent, none of their symbols visible
# outside the module, so that another zstd or libjpeg in the same process is another one. The vector code of each is on; they ask the
# processor at run time. Where a library marks its public symbols by itself, the mark is turned off, or it would win over the preset.
set(sources ${PENSTOCK_CODEC_SOURCES})
foreach(library deflate jpeg lz4 png webp zlib zstd)
  if(NOT EXISTS ${sources}/${library}/LICENSE)
    message(FATAL_ERROR "PENSTOCK_SYSTEM_CODECS=OFF needs PENSTOCK_CODEC_SOURCES with ${library} in it: "
                        "python tools/codec_sources.py build/codecs, then -DPENSTOCK_CODEC_SOURCES=<absolute path of build/codecs>")
  endif()
  if(SKBUILD)
    install(FILES ${sources}/${library}/LICENSE DESTINATION ${SKBUILD_METADATA_DIR}/licenses/${library})
  endif()
endforeach()
enable_language(C)
set(generated ${sources}/generated)  # the same for every target and build, so that a compiler's cache knows them
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(processor x86)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(processor arm)
else()
  message(FATAL_ERROR "PENSTOCK_SYSTEM_CODECS=OFF: expected x86-64 or arm64, found ${CMAKE_SYSTEM_PROCESSOR}")
endif()

# One library: its name, then its files.
function(add_codec name)
  add_library(penstock_${name} STATIC ${ARGN})
  target_compile_options(penstock_${name} PRIVATE $<$<COMPILE_LANGUAGE:C>:-w>)  # their warnings are not ours to mend
  set_target_properties(penstock_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
  target_link_libraries(penstock_codecs INTERFACE penstock_${name})
endfunction()

# zstd, lz4, libdeflate. The files of a library were chosen where it was fetched, so most need no list here.
add_codec(zstd ${sources}/zstd/zstd.c)
target_compile_definitions(penstock_zstd PRIVATE ZSTDLIB_VISIBLE= ZSTDERRORLIB_VISIBLE= ZDICTLIB_VISIBLE=)
add_codec(lz4 ${sources}/lz4/lz4.c ${sources}/lz4/lz4hc.c)
target_compile_definitions(penstock_lz4 PRIVATE LZ4LIB_VISIBILITY=)
file(GLOB files ${sources}/deflate/lib/*.c ${sources}/deflate/lib/*/*.c)
add_codec(deflate ${files})
target_include_directories(penstock_deflate PRIVATE ${sources}/deflate)

# zlib (without gzip files), then libpng, which needs it.
file(GLOB files ${sources}/zlib/*.c)
add_codec(zlib ${files})
configure_file(${sources}/zlib/zconf.h.in ${generated}/zlib/zconf.h COPYONLY)
target_include_directories(penstock_zlib SYSTEM PUBLIC ${sources}/zlib ${generated}/zlib)
target_compile_definitions(penstock_zlib PRIVATE HAVE_UNISTD_H HAVE_STDARG_H)

if(processor STREQUAL x86)
  file(GLOB files ${sources}/png/*.c ${sources}/png/intel/*.c)
  add_codec(png ${files})
  target_compile_definitions(penstock_png PRIVATE PNG_INTEL_SSE_OPT=1)
else()
  file(GLOB files ${sources}/png/*.c ${sources}/png/arm/*.c)
  add_codec(png ${files})
  target_compile_definitions(penstock_png PRIVATE PNG_ARM_NEON_OPT=2)
endif()
target_link_libraries(penstock_png PUBLIC penstock_zlib)

# libwebp: the decoder. Threads: its tables of functions are set up under a lock.
file(GLOB files ${sources}/webp/src/dec/*.c ${sources}/webp/src/dsp/*.c ${sources}/webp/src/utils/*.c)
add_codec(webp ${files})
target_include_directories(penstock_webp PRIVATE ${sources}/webp)
target_compile_definitions(penstock_webp PRIVATE WEBP_EXTERN=extern WEBP_USE_THREAD)
if(processor STREQUAL x86)
  target_compile_definitions(penstock_webp PRIVATE WEBP_HAVE_SSE2 WEBP_HAVE_SSE41 WEBP_HAVE_AVX2)
  foreach(file ${files})
    if(file MATCHES "_sse41.c$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS -msse4.1)
    elseif(file MATCHES "_avx2.c$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS -mavx2)
    endif()
  endforeach()
endif()

# libjpeg-turbo: the API of libjpeg 6b, with arithmetic coding. It compiles some files once for each size of samples.
set(jpeg ${sources}/jpeg)
set(all_sizes jcapistd jccolor jcdiffct jclossls jcmainct jcprepct jcsample jdapistd jdcolor jddiffct jdlossls jdmainct jdpostct jdsample
    jutils)
set(8_and_12 jccoefct jcdctmgr jdcoefct jddctmgr jdmerge jfdctfst jfdctint jidctflt jidctfst jidctint jidctred jquant1 jquant2)
set(others jaricom jcapimin jcarith jchuff jcicc jcinit jclhuff jcmarker jcmaster jcomapi jcparam jcphuff jctrans jdapimin jdarith
    jdatadst jdatasrc jdhuff jdicc jdinput jdlhuff jdmarker jdmaster jdphuff jdtrans jerror jfdctflt jmemmgr jmemnobs jpeg_nbits)
set(files_8 ${all_sizes} ${8_and_12} ${others})
set(files_12 ${all_sizes} ${8_and_12})
set(files_16 ${all_sizes})
foreach(bits 8 12 16)
  list(TRANSFORM files_${bits} PREPEND ${jpeg}/src/)
  list(TRANSFORM files_${bits} APPEND .c)
endforeach()

if(processor STREQUAL x86)
  include(CheckLanguage)
  check_language(ASM_NASM)
  if(NOT CMAKE_ASM_NASM_COMPILER)
    message(FATAL_ERROR "the vector code of libjpeg-turbo needs nasm; on Debian or Ubuntu: apt-get install nasm")
  endif()
  enable_language(ASM_NASM)
  file(GLOB vector_code ${jpeg}/simd/x86_64/*.asm ${jpeg}/simd/x86_64/*.c)
  list(FILTER vector_code EXCLUDE REGEX "j(ccolext|cgryext|dcolext|dmrgext)-")  # parts of others
  set(vector_includes ${jpeg}/simd/nasm ${jpeg}/simd/x86_64)
else()
  set(vector_files aarch64/jchuff-neon aarch64/jsimd jccolor-neon jcgray-neon jcphuff-neon jcsample-neon jdcolor-neon jdmerge-neon
      jdsample-neon jfdctfst-neon jfdctint-neon jidctfst-neon jidctint-neon jidctred-neon jquanti-neon)
  list(TRANSFORM vector_files PREPEND ${jpeg}/simd/arm/)
  list(TRANSFORM vector_files APPEND .c OUTPUT_VARIABLE vector_code)
  foreach(intrinsic HAVE_VLD1_S16_X3 HAVE_VLD1_U16_X2 HAVE_VLD1Q_U8_X4)  # every clang that zig has been has them
    set(${intrinsic} 1)
  endforeach()
  configure_file(${jpeg}/simd/arm/neon-compat.h.in ${generated}/jpeg/neon-compat.h)
  set(vector_includes ${jpeg}/simd/arm)
endif()

block()  # the names of libjpeg-turbo's own settings
  set(VERSION 3.1.2)
  set(LIBJPEG_TURBO_VERSION_NUMBER 3001002)
  set(COPYRIGHT_YEAR 1991-2025)
  set(BUILD penstock)
  set(CMAKE_PROJECT_NAME libjpeg-turbo)
  set(JPEG_LIB_VERSION 62)
  set(C_ARITH_CODING_SUPPORTED 1)
  set(D_ARITH_CODING_SUPPORTED 1)
  set(WITH_SIMD 1)
  set(HIDDEN "__attribute__((visibility(\"hidden\")))")
  set(INLINE "inline __attribute__((always_inline))")
  set(THREAD_LOCAL __thread)
  set(SIZE_T 8)
  set(HAVE_BUILTIN_CTZL 1)
  foreach(header jconfig.h jconfigint.h jversion.h)
    configure_file(${jpeg}/${header}.in ${generated}/jpeg/${header})
  endforeach()
endblock()

foreach(bits 12 16)
  add_library(penstock_jpeg${bits} OBJECT ${files_${bits}})
endforeach()
add_codec(jpeg ${files_8} ${vector_code} $<TARGET_OBJECTS:penstock_jpeg12> $<TARGET_OBJECTS:penstock_jpeg16>)
foreach(target penstock_jpeg12 penstock_jpeg16 penstock_jpeg)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
  target_include_directories(${target} PRIVATE ${generated}/jpeg ${jpeg}/src ${jpeg}/simd ${vector_includes})
  string(REGEX MATCH "[0-9]+" bits ${target})
  # The environment is not asked for switches of the vector code.
  target_compile_definitions(${target} PRIVATE NO_GETENV NO_PUTENV $<$<COMPILE_LANGUAGE:C>:NEON_INTRINSICS>
    $<$<COMPILE_LANGUAGE:ASM_NASM>:ELF> $<$<COMPILE_LANGUAGE:ASM_NASM>:PIC> $<$<COMPILE_LANGUAGE:ASM_NASM>:__x86_64__>
    $<$<BOOL:${bits}>:BITS_IN_JSAMPLE=${bits}>)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-w>)
endforeach()

target_include_directories(penstock_codecs SYSTEM INTERFACE ${sources}/zstd ${sources}/lz4 ${sources}/deflate ${sources}/png
  ${sources}/webp/src ${generated}/jpeg ${jpeg}/src)
