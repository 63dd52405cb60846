# Libraries: threads and zlib are needed; libpng, libjpeg (the files that folder:DIR decodes) and hwloc (for pinning
# ranks) are optional. An optional one is used where a program with it compiles and links now: a header without its
# library, or a library of another architecture, would fail later, in a build that could do without it.
include(CheckCSourceCompiles)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG)
find_package(JPEG)

# Sets LK_<name>_LINKS if `source` compiles and links with `libraries` and, behind it, directories of headers; otherwise
# one line says what is left out. A failure is not remembered.
function(probe_library name found without libraries source)
  if(NOT found)
    message(STATUS "${without}: it is not installed")
    return()
  endif()
  set(CMAKE_REQUIRED_LIBRARIES ${libraries})
  set(CMAKE_REQUIRED_INCLUDES ${ARGN})
  set(CMAKE_REQUIRED_QUIET TRUE)
  check_c_source_compiles("${source}" LK_${name}_LINKS)
  if(NOT LK_${name}_LINKS)
    unset(LK_${name}_LINKS CACHE)
    message(STATUS "${without}: a program that uses it does not compile and link "
                   "(CMakeFiles/CMakeError.log or CMakeConfigureLog.yaml says why)")
  endif()
endfunction()

probe_library(PNG "${PNG_FOUND}" "PNG files cannot be read without libpng" PNG::PNG "#include <png.h>
  int main(void) { return png_create_read_struct(PNG_LIBPNG_VER_STRING, 0, 0, 0) == 0; }")
probe_library(JPEG "${JPEG_FOUND}" "JPEG files cannot be read without libjpeg" JPEG::JPEG "#include <stdio.h>
  #include <jpeglib.h>
  int main(void) { struct jpeg_error_mgr errors; return jpeg_std_error(&errors) == 0; }")
# Only its header is used: the library is loaded when it is needed.
find_path(LK_HWLOC_HEADER hwloc.h)
probe_library(HWLOC "${LK_HWLOC_HEADER}" "Ranks are pinned by the kernel's core numbers without hwloc" ""
    "#include <hwloc.h>
  int main(void) { hwloc_topology_t topology = 0; return topology != 0 || HWLOC_OBJ_PU < 0; }" ${LK_HWLOC_HEADER})

set(image_definitions)
set(image_libraries)
if(LK_PNG_LINKS)
  list(APPEND image_definitions LK_PNG)
  list(APPEND image_libraries PNG::PNG)
endif()
if(LK_JPEG_LINKS)
  list(APPEND image_definitions LK_JPEG)
  list(APPEND image_libraries JPEG::JPEG)
endif()
