# The target penstock_codecs: zstd, lz4, libdeflate, libjpeg-turbo, libpng and libwebp, of the system or built here for wheels.
add_library(penstock_codecs INTERFACE)

if(NOT PENSTOCK_SYSTEM_CODECS)
  include(${CMAKE_CURRENT_LIST_DIR}/bundled_codecs.cmake)
  return()
endif()

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
    target_include_directories(penstock_codecs SYSTEM INTERFACE ${PENSTOCK_${name}_INCLUDE})
  else()
    string(APPEND missing " ${package}")
  endif()
endforeach()
if(missing)
  message(FATAL_ERROR "a build of penstock from source needs zstd, lz4, libdeflate, libjpeg-turbo, libpng and libwebp; on Debian or "
                      "Ubuntu: apt-get install${missing}\n(the wheels have them inside: pip install --only-binary penstock penstock)")
endif()

include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_INCLUDES ${PENSTOCK_jpeg_INCLUDE})
check_cxx_source_compiles("#include <cstdio>\n#include <jpeglib.h>\n#ifndef LIBJPEG_TURBO_VERSION\n#error\n#endif\nint main() {}"
                          PENSTOCK_JPEG_IS_TURBO)
unset(CMAKE_REQUIRED_INCLUDES)
if(NOT PENSTOCK_JPEG_IS_TURBO)
  message(FATAL_ERROR "expected libjpeg-turbo, found another libjpeg with its header in ${PENSTOCK_jpeg_INCLUDE}; name the right one with "
                      "-DPENSTOCK_jpeg_INCLUDE=<folder of jpeglib.h> -DPENSTOCK_jpeg_LIBRARY=<path of the library>")
endif()
