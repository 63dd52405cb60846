# The CUDA module, liblockstep-cuda.so: src/device/cuda, compiled by nvcc (12.4 or later) where it is found;
# src/device/cuda.c loads it when it is needed. cuBLASLt and cuDNN are opened at run time: only their headers are used
# here. For the tests the same files are compiled once more for the CPU, with an emulation of CUDA's runtime
# (test/cuda_emulated), as build/cuda_emulated/liblockstep-cuda.so.
set(LK_CUDA AUTO CACHE STRING
    "Build the CUDA module: AUTO (if nvcc is found), ON (an error if it is not found), OFF")
set(LK_CUDA_ARCHITECTURES "80;90a;compute_80" CACHE STRING
    "What the CUDA module is compiled for: 90a is code for sm_90a, compute_80 is PTX, which drivers compile for later \
GPUs. Fewer build faster")
file(GLOB cuda_sources CONFIGURE_DEPENDS src/device/cuda/*.cu)
set(cuda_built "")

set(cuda_missing "")
if(LK_CUDA STREQUAL "OFF")
  set(cuda_missing "LK_CUDA is OFF")
elseif(LK_SANITIZE AND LK_CUDA STREQUAL "AUTO")
  set(cuda_missing "sanitizers check only the host's code")
else()
  find_program(LK_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin PATHS /usr/local/cuda/bin)
  if(NOT LK_NVCC)
    set(cuda_missing "nvcc is not installed")
  else()
    execute_process(COMMAND ${LK_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" version "${version}")
    set(nvcc_version "${CMAKE_MATCH_1}")
    if(NOT nvcc_version OR nvcc_version VERSION_LESS 12.4)
      set(cuda_missing "${LK_NVCC} is version ${nvcc_version}, but 12.4 or later is needed")
    endif()
  endif()
endif()

if(NOT cuda_missing)
  set(cuda_flags -std=c++17 -O3 --expt-relaxed-constexpr)
  foreach(architecture ${LK_CUDA_ARCHITECTURES})
    if(architecture MATCHES "^compute_(.+)")
      list(APPEND cuda_flags -gencode arch=${architecture},code=${architecture})
      list(APPEND cuda_architectures ${architecture})
    else()
      list(APPEND cuda_flags -gencode arch=compute_${architecture},code=sm_${architecture})
      list(APPEND cuda_architectures sm_${architecture})
    endif()
    if(architecture STREQUAL "90a")
      list(APPEND cuda_flags -DLK_CUDA_SM_90A) # what wgmma.h needs
    endif()
  endforeach()
  # nvcc needs a C++ compiler that it knows, and its libraries: one small shared object is compiled and linked now.
  set(cuda_link_flags -shared -cudart static -Xlinker --exclude-libs,ALL,-z,defs)
  if(NOT LK_NVCC_WORKS STREQUAL "${LK_NVCC} ${nvcc_version} ${cuda_flags}")
    file(WRITE ${PROJECT_BINARY_DIR}/cuda/works.cu
        "#include <cuda_bf16.h>\n__global__ void works(int *p) { *p = 1; }\nvoid run(int *p) { works<<<1, 1>>>(p); }\n")
    execute_process(COMMAND ${LK_NVCC} ${cuda_flags} -Xcompiler -fPIC ${cuda_link_flags}
        ${PROJECT_BINARY_DIR}/cuda/works.cu -o ${PROJECT_BINARY_DIR}/cuda/works.so
                    RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(failed)
      find_reason("${output}" "${failed}" reason)
      set(cuda_missing "${LK_NVCC} does not compile and link: ${reason}")
    else()
      set(LK_NVCC_WORKS "${LK_NVCC} ${nvcc_version} ${cuda_flags}" CACHE INTERNAL "What compiled a file")
    endif()
  endif()
endif()

if(cuda_missing AND LK_CUDA STREQUAL "ON")
  message(FATAL_ERROR "LK_CUDA is ON: ${cuda_missing}")
elseif(cuda_missing)
  message(STATUS "No CUDA module: ${cuda_missing}")
else()
  set(cuda_objects)
  foreach(source ${cuda_sources})
    get_filename_component(name ${source} NAME)
    set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_CUDA_COMPILER_LAUNCHER} ${LK_NVCC} ${cuda_flags}
              -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra
              -I ${PROJECT_SOURCE_DIR}/include -I ${PROJECT_SOURCE_DIR}/src
              -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "Compiling ${name} for ${cuda_architectures}"
      VERBATIM)
    list(APPEND cuda_objects ${object})
  endforeach()
  set(cuda_library ${PROJECT_BINARY_DIR}/liblockstep-cuda.so)
  add_custom_command(
    OUTPUT ${cuda_library}
    COMMAND ${LK_NVCC} ${cuda_flags} ${cuda_link_flags} ${cuda_objects} -o ${cuda_library}
    DEPENDS ${cuda_objects}
    COMMENT "Linking the CUDA module"
    VERBATIM)
  add_custom_target(cuda_module ALL DEPENDS ${cuda_library})
  # add_cuda_bench(NAME KERNELS…): bench/NAME.cu with files of the module; not part of `all`.
  function(add_cuda_bench name)
    set(objects)
    foreach(kernel ${ARGN})
      list(APPEND objects ${PROJECT_BINARY_DIR}/cuda/${kernel}.cu.o)
    endforeach()
    set(source ${PROJECT_SOURCE_DIR}/bench/${name}.cu)
    set(program ${PROJECT_BINARY_DIR}/bench/${name})
    add_custom_command(
      OUTPUT ${program}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/bench
      COMMAND ${LK_NVCC} ${cuda_flags} -I ${PROJECT_SOURCE_DIR}/include -I ${PROJECT_SOURCE_DIR}/src
              -o ${program} ${source} ${objects} -ldl
      DEPENDS ${source} ${objects}
      COMMENT "Compiling bench/${name}.cu"
      VERBATIM)
    add_custom_target(${name} DEPENDS ${program})
  endfunction()
  add_cuda_bench(cuda_products products small_products skinny skinny_transposed linear blas autotuning column_sums
      grouped_linear grouped_tensor conv conv_dnn conv_direct conv_direct_weight conv_first conv_tensor dnn_load)
  add_cuda_bench(cuda_memory layer_norm adam)
  add_cuda_bench(cuda_peers peers peer_launch)
  install(FILES ${cuda_library} DESTINATION ${CMAKE_INSTALL_LIBDIR}/lockstep)
  list(JOIN cuda_architectures " " text)
  set(cuda_built "${nvcc_version}: ${text}")
  message(STATUS "CUDA module: ${cuda_built}")
endif()
set_source_files_properties(src/device/cuda.c PROPERTIES
    COMPILE_DEFINITIONS LK_BUILT_CUDA="${cuda_built}") # "13.0: sm_80 sm_90a compute_80", or ""

# The emulation. It switches stacks, which sanitizers do not know of.
set(LK_CUDA_EMULATED OFF)
if(LK_TESTS AND NOT LK_FUZZ AND cuda_sources)
  include(CheckLanguage)
  check_language(CXX)
  if(NOT CMAKE_CXX_COMPILER)
    message(STATUS "No emulation of CUDA: there is no C++ compiler")
  elseif(LK_SANITIZE)
    message(STATUS "No emulation of CUDA: it does not work with -fsanitize=${LK_SANITIZE}")
  elseif(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|x86_64|amd64|AMD64")
    message(STATUS "No emulation of CUDA: it can switch stacks only on arm64 and x86-64")
  else()
    set(LK_CUDA_EMULATED ON)
  endif()
endif()
if(LK_CUDA_EMULATED)
  enable_language(CXX)
  include(CheckCXXSourceCompiles)
  set(emulated_shared -Wl,-T,${PROJECT_SOURCE_DIR}/test/cuda_emulated/shared.ld)
  set(CMAKE_REQUIRED_LINK_OPTIONS ${emulated_shared})
  check_cxx_source_compiles("int main() { return 0; }" LK_LINKER_INSERTS) # GNU ld and lld do
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
  if(NOT LK_LINKER_INSERTS)
    message(STATUS "The emulation of CUDA does not fill static shared memory: the linker does not accept shared.ld")
    set(emulated_shared)
  endif()
  # Code for cuBLASLt and cuDNN leaves itself out. Warnings are nvcc's task.
  set_source_files_properties(${cuda_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
  add_library(cuda_emulated_runtime OBJECT test/cuda_emulated/threads.cpp test/cuda_emulated/runtime.cpp
      test/cuda_emulated/cupti.cpp)
  add_library(cuda_emulated MODULE ${cuda_sources} $<TARGET_OBJECTS:cuda_emulated_runtime>
      test/cuda_emulated/libraries.cpp test/cuda_emulated/host_calls.cpp)
  add_executable(cuda_emulation test/cuda_emulated/cuda_emulation.cpp $<TARGET_OBJECTS:cuda_emulated_runtime>)
  foreach(target cuda_emulated_runtime cuda_emulated cuda_emulation)
    # As C++14, with `if constexpr` as an extension: <math.h> of C++17 brings special functions that take longer to
    # compile than most kernels.
    set_target_properties(${target} PROPERTIES CXX_STANDARD 14 CXX_STANDARD_REQUIRED ON)
    target_compile_definitions(${target} PRIVATE LK_CUDA_EMULATED)
    # At -O1 kernels compile 1.5 times as long as at -Og and run twice as fast; switching between threads is compiled
    # fully.
    target_compile_options(${target} PRIVATE -O1 -w -fno-strict-aliasing -fdata-sections -fvisibility=hidden)
    target_include_directories(${target} BEFORE PRIVATE test/cuda_emulated)
    target_include_directories(${target} PRIVATE include src)
  endforeach()
  target_compile_options(cuda_emulated_runtime PRIVATE -O2)
  foreach(target cuda_emulated cuda_emulation)
    target_link_options(${target} PRIVATE ${emulated_shared})
    target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/test/cuda_emulated/shared.ld)
  endforeach()
  # The kernels of collectives with ranks that are threads; once more with the thread sanitizer, which does not follow
  # the emulation's stacks.
  set(CMAKE_REQUIRED_FLAGS -fsanitize=thread)
  check_cxx_source_compiles("int main() { return 0; }" LK_HAS_THREAD_SANITIZER)
  unset(CMAKE_REQUIRED_FLAGS)
  foreach(target peer_threads peer_threads_sanitized)
    if(target STREQUAL "peer_threads_sanitized" AND NOT LK_HAS_THREAD_SANITIZER)
      continue()
    endif()
    add_executable(${target} test/cuda_emulated/peer_threads.cpp src/device/cuda/peers.cu
        src/device/cuda/peer_launch.cu)
    set_target_properties(${target} PROPERTIES CXX_STANDARD 14 CXX_STANDARD_REQUIRED ON)
    target_compile_definitions(${target} PRIVATE LK_CUDA_EMULATED LK_EMULATED_PLACE=thread_local)
    target_compile_options(${target} PRIVATE -Og -w -fno-strict-aliasing)
    target_include_directories(${target} BEFORE PRIVATE test/cuda_emulated)
    target_include_directories(${target} PRIVATE include src)
    target_link_libraries(${target} PRIVATE lockstep_static Threads::Threads ZLIB::ZLIB m ${CMAKE_DL_LIBS})
  endforeach()
  if(LK_HAS_THREAD_SANITIZER)
    target_compile_options(peer_threads_sanitized PRIVATE -fsanitize=thread)
    target_link_options(peer_threads_sanitized PRIVATE -fsanitize=thread)
  endif()
  set_target_properties(cuda_emulated PROPERTIES PREFIX lib OUTPUT_NAME lockstep-cuda LIBRARY_OUTPUT_DIRECTORY
      ${PROJECT_BINARY_DIR}/cuda_emulated)
  # Loaded as the runtime loads the driver's library: lk_spawn then refuses to fork, as after a GPU was used.
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/cuda_emulated/driver.c CONTENT
      "int lk__emulated_driver(void) { return 1; }\n" @ONLY)
  add_library(cuda_emulated_driver MODULE ${PROJECT_BINARY_DIR}/cuda_emulated/driver.c)
  set_target_properties(cuda_emulated_driver PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME libcuda.so.1 NO_SONAME ON
                        LINK_OPTIONS "-Wl,-soname,libcuda.so.1"
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cuda_emulated)
  add_dependencies(cuda_emulated cuda_emulated_driver)
endif()
