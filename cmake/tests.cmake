# Every test_*.c, *.cpp and *.sh in the folders of test/ is one test in its own process. One line near its top may set
# how it is run:
#
#   ctest: timeout 300, ranks 4, label threaded, args --steps 2        (each part is optional)
#
# The default timeout is 120 seconds. Exit status 77 means "skipped". `ranks` is how many ranks the test runs at the
# same time: ctest -j reserves so many cores, and the test has the label `oversubscribed` where the machine has fewer. A
# C test that starts more than it announces fails (check.h); in scripts, numbers behind -n and --nproc-per-node count
# too. Scripts get these environment variables: LOCKSTEP (the command), SOURCE_DIR, BUILD_DIR, CC, LK_SANITIZE.
set(default_timeout 120)
# Tests compile at -Og: at -O3 they were a third of the time of a build, and what they test, the library, is compiled as
# always. At -O1, which sanitizers need more, they compile a third longer and run 4 % faster. GCC knows fewer ranges
# of values there, and would warn of texts that never are that long.
set(slowness 1)
set(test_level -Og)
if(LK_SANITIZE)
  set(slowness 6)
  set(test_level -O1)
endif()
set(test_options $<$<NOT:$<CONFIG:Debug>>:${test_level}> $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>)
execute_process(COMMAND nproc OUTPUT_VARIABLE cores OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT cores MATCHES "^[1-9][0-9]*$")
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
endif()

# Not with gcc: its code (12 was measured) does not release the small frames of the stack that this check replaces the
# real one with. After some thousand calls every further call searches all of them: 13 µs each, 98 % of the time of
# test_comm.
set(detect_stack_use_after_return 1)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  set(detect_stack_use_after_return 0)
endif()

# On a machine with a GPU, too, tests run on the CPU unless they choose another device.
set(test_environment "LOCKSTEP_DEVICE=cpu" "LOCKSTEP_VERIFY_SCHEDULE=1" "LOCKSTEP=$<TARGET_FILE:lockstep_command>"
    "SOURCE_DIR=${PROJECT_SOURCE_DIR}" "BUILD_DIR=${PROJECT_BINARY_DIR}"
    "CC=${CMAKE_C_COMPILER}" "LK_SANITIZE=${LK_SANITIZE}" "UBSAN_OPTIONS=print_stacktrace=1")

# The largest number behind -n or --nproc-per-node in the script `source`; `plan -n` starts no ranks, and other programs
# have a -n too.
function(find_ranks source ranks)
  set(most 1)
  file(STRINGS ${source} lines REGEX "(-n|nproc[-_]per[-_]node)[ =][0-9]")
  foreach(line ${lines})
    string(REGEX REPLACE "(head|tail|xargs|plan) -n [0-9]+" "" line "${line}")
    string(REGEX MATCHALL "(-n|nproc[-_]per[-_]node)[ =][0-9]+" uses "${line}")
    foreach(use ${uses})
      string(REGEX REPLACE ".*[ =]" "" number "${use}")
      if(number GREATER most)
        set(most ${number})
      endif()
    endforeach()
  endforeach()
  set(${ranks} ${most} PARENT_SCOPE)
endfunction()

# Reads the settings of the test in `source`: setting_timeout, setting_ranks, setting_labels, setting_args.
function(read_settings source)
  file(STRINGS ${source} lines REGEX "ctest: " LIMIT_INPUT 4096)
  set(setting_timeout ${default_timeout})
  set(setting_ranks 1)
  set(setting_labels "")
  set(setting_args "")
  foreach(line ${lines})
    if(line MATCHES "ranks ([0-9]+)")
      set(setting_ranks ${CMAKE_MATCH_1})
    endif()
    if(line MATCHES "timeout ([0-9]+)")
      set(setting_timeout ${CMAKE_MATCH_1})
    endif()
    string(REGEX MATCHALL "label [a-z]+" labels "${line}")
    list(TRANSFORM labels REPLACE "label " "")
    set(setting_labels ${labels})
    if(line MATCHES "args ([^*]*[^* ])")
      separate_arguments(setting_args UNIX_COMMAND "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  math(EXPR setting_timeout "${setting_timeout} * ${slowness}")
  if(source MATCHES "\\.sh$")
    find_ranks(${source} ranks)
    if(ranks GREATER setting_ranks)
      set(setting_ranks ${ranks})
    endif()
  endif()
  if(setting_ranks GREATER cores)
    list(APPEND setting_labels oversubscribed)
  endif()
  set(setting_timeout ${setting_timeout} PARENT_SCOPE)
  set(setting_ranks ${setting_ranks} PARENT_SCOPE)
  set(setting_labels ${setting_labels} PARENT_SCOPE)
  set(setting_args ${setting_args} PARENT_SCOPE)
endfunction()

# Applies the settings to `test`. Scripts start many short processes, and the leak check at the end of each can take
# seconds: only other kinds of test check for leaks.
function(apply_settings test kind)
  set(leaks 1)
  if(kind STREQUAL "script")
    set(leaks 0)
  endif()
  set(asan_options "detect_leaks=${leaks}:detect_stack_use_after_return=${detect_stack_use_after_return}")
  set_tests_properties(${test} PROPERTIES TIMEOUT ${setting_timeout} SKIP_RETURN_CODE 77 PROCESSORS ${setting_ranks}
      LABELS "${kind};${setting_labels}"
                       ENVIRONMENT "${test_environment};LK_TEST_RANKS=${setting_ranks};ASAN_OPTIONS=${asan_options}")
endfunction()

# The same test once more, as NAME_guarded, on the device `guarded`: an access to a tensor's memory that does not go
# through the device is a fault there, and results have the CPU's bits.
function(add_guarded_test name kind)
  list(REMOVE_ITEM setting_labels quick)
  add_test(NAME ${name}_guarded COMMAND ${ARGN})
  apply_settings(${name}_guarded ${kind})
  set_property(TEST ${name}_guarded APPEND PROPERTY ENVIRONMENT "LOCKSTEP_DEVICE=guarded")
  set_property(TEST ${name}_guarded APPEND PROPERTY LABELS guarded)
endfunction()

# And once more, as NAME_emulated, on the device `cuda` of the emulation (cuda.cmake), whose memory and order of work
# are a GPU's. Not those in emulated_excluded, by name and reason.
set(emulated_excluded
    test_operation # users' operations run on the host alone
    # minutes, mostly in the exchange of norms' and attention's warps
    test_gradients test_program test_parity test_precision test_ddp_golden test_generate test_trainer test_reproducible
    test_data_parallel test_data_parallel_resnet test_transformers
    test_vocabulary) # a loss has tens of millions of logits before its rows are done in blocks
function(add_emulated_test name kind)
  if(NOT LK_CUDA_EMULATED OR name IN_LIST emulated_excluded)
    return()
  endif()
  list(REMOVE_ITEM setting_labels quick threaded)
  math(EXPR setting_timeout "${setting_timeout} * 2")
  add_test(NAME ${name}_emulated COMMAND ${ARGN})
  apply_settings(${name}_emulated ${kind})
  set_property(TEST ${name}_emulated APPEND PROPERTY ENVIRONMENT "LOCKSTEP_DEVICE=cuda" "LOCKSTEP_SHARE_DEVICE=1"
               "LOCKSTEP_MODULES=${PROJECT_BINARY_DIR}/cuda_emulated" "LK_TEST_SLOW=1" "LK_TEST_MEMORY=apart")
  set_property(TEST ${name}_emulated APPEND PROPERTY LABELS emulated)
endfunction()

# And once more, as NAME_ISA, with each instruction set whose instructions are C (CMakeLists.txt), which takes longer.
function(add_isa_tests name)
  list(REMOVE_ITEM setting_labels quick)
  foreach(isa ${emulated_isas})
    if(name MATCHES "_conv$" AND isa IN_LIST sets_without_conv)
      continue()
    endif()
    add_test(NAME ${name}_${isa} COMMAND ${name})
    apply_settings(${name}_${isa} c)
    set_property(TEST ${name}_${isa} APPEND PROPERTY ENVIRONMENT "LK_TEST_ISA=${isa}" "LK_TEST_SLOW=1"
                 "LOCKSTEP_DEVICE=cpu")
    set_property(TEST ${name}_${isa} APPEND PROPERTY LABELS emulated)
  endforeach()
endfunction()

# Tests of kernels list what they ran, on the CPU or a device; test_kernels_covered reads the lists after them.
function(add_kernels_listed name test device)
  set(directory ${PROJECT_BINARY_DIR}/kernels_ran/${device})
  if(NOT TEST ${test} OR NOT name MATCHES "^test_kernels")
    return()
  endif()
  file(MAKE_DIRECTORY ${directory})
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT "LK_KERNELS_RAN=${directory}")
  if(name STREQUAL "test_kernels_covered")
    set_property(TEST ${test} PROPERTY FIXTURES_REQUIRED kernels_${device})
  else()
    set_property(TEST ${test} PROPERTY FIXTURES_SETUP kernels_${device})
  endif()
endfunction()

# C tests include internal headers and link the static library. Those of programs and trainers run on `guarded` too, and
# with those of kernels on the emulation.
file(GLOB sources CONFIGURE_DEPENDS test/*/test_*.c)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE src test)
  target_compile_options(${name} PRIVATE ${test_options})
  target_compile_definitions(${name} PRIVATE LK_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
      LK_COMMAND="$<TARGET_FILE:lockstep_command>")
  target_link_libraries(${name} PRIVATE lockstep_static Threads::Threads ZLIB::ZLIB m ${CMAKE_DL_LIBS})
  read_settings(${source})
  add_test(NAME ${name} COMMAND ${name} ${setting_args})
  apply_settings(${name} c)
  file(STRINGS ${source} programs REGEX
      "lk_program_|lk_trainer_|include \"(support|parallel|training_batch|checkpoint_rig|placement_model|slices)\\.h\"")
  # test_device tests every device itself; test_shared_*, test_memory_nodes and test_memory_check are about memory of
  # the host; test_large has inputs of which hardly a page exists, and a copy would need all of them
  if(programs AND NOT name MATCHES "^test_(device|large|shared_.*|memory_nodes|memory_check)$")
    add_guarded_test(${name} c ${name} ${setting_args})
    add_emulated_test(${name} c ${name} ${setting_args})
  elseif(name MATCHES "^test_(kernels.*|device|comm_queue|p2p)$")
    add_emulated_test(${name} c ${name} ${setting_args})
  endif()
  if(name MATCHES "^test_kernels_(gemm|conv|experts|attention)$")
    add_isa_tests(${name})
  endif()
  add_kernels_listed(${name} ${name} cpu)
  add_kernels_listed(${name} ${name}_emulated emulated)
endforeach()

# Any two internal headers can be included in one file: one test includes all of them, another in reverse order. The
# kernels' headers are excluded: they are compiled once per type and instruction set.
file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR}/src CONFIGURE_DEPENDS src/*/*.h src/*/*/*.h)
list(FILTER headers EXCLUDE REGEX "^device/((cpu|cuda)/|functions\\.h$)")
list(APPEND headers device/cuda/module.h) # the others of cuda/ are C++
foreach(order forwards backwards)
  list(TRANSFORM headers REPLACE "(.+)" "#include \"\\1\"" OUTPUT_VARIABLE lines)
  list(JOIN lines "\n" text)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/test_headers_${order}.c CONTENT "${text}\nint main(void) { return 0; }\n"
      @ONLY)
  add_executable(test_headers_${order} ${PROJECT_BINARY_DIR}/test_headers_${order}.c)
  target_include_directories(test_headers_${order} PRIVATE include src)
  target_compile_definitions(test_headers_${order} PRIVATE _GNU_SOURCE)
  add_test(NAME test_headers_${order} COMMAND test_headers_${order})
  list(REVERSE headers)
endforeach()

# C++ tests use public headers and the shared library only.
include(CheckLanguage)
check_language(CXX)
if(CMAKE_CXX_COMPILER)
  enable_language(CXX)
endif()
if(NOT CMAKE_CXX_COMPILER OR NOT cxx_std_20 IN_LIST CMAKE_CXX_COMPILE_FEATURES)
  message(STATUS "No tests in C++: there is no compiler for C++20")
else()
  file(GLOB sources CONFIGURE_DEPENDS test/tree/*.cpp)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_compile_features(${name} PRIVATE cxx_std_20)
    target_link_libraries(${name} PRIVATE lockstep)
    read_settings(${source})
    add_test(NAME ${name} COMMAND ${name} ${setting_args})
    apply_settings(${name} cxx)
  endforeach()
endif()

# The emulation of CUDA (cuda.cmake) has a test of its own, and the kernels of collectives have one on threads.
if(LK_CUDA_EMULATED)
  read_settings(test/cuda_emulated/cuda_emulation.cpp)
  add_test(NAME cuda_emulation COMMAND cuda_emulation)
  apply_settings(cuda_emulation cxx)
  set_property(TEST cuda_emulation APPEND PROPERTY LABELS emulated)
  read_settings(test/cuda_emulated/peer_threads.cpp)
  foreach(name peer_threads peer_threads_sanitized)
    if(TARGET ${name})
      add_test(NAME ${name} COMMAND ${name} ${setting_args})
      apply_settings(${name} cxx)
      set_property(TEST ${name} APPEND PROPERTY LABELS emulated)
    endif()
  endforeach()
endif()

# So do the examples; test/tree/examples.sh runs them.
file(GLOB sources CONFIGURE_DEPENDS examples/*.c)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  if(name STREQUAL "model_so") # a shared object that the command loads
    add_library(example_${name} MODULE ${source})
    target_include_directories(example_${name} PRIVATE include)
    set_target_properties(example_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples OUTPUT_NAME
        ${name} PREFIX "")
    continue()
  endif()
  add_executable(example_${name} ${source})
  set_target_properties(example_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples OUTPUT_NAME
      ${name})
  target_link_libraries(example_${name} PRIVATE lockstep m)
endforeach()

# Scripts, except storm_*.sh, which take long and are run by `./x check`, and test/extend/run.sh, which is run before
# releases.
file(GLOB sources CONFIGURE_DEPENDS test/*/*.sh)
list(FILTER sources EXCLUDE REGEX "/storm_[^/]*$|/extend/[^/]*$")
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  read_settings(${source})
  add_test(NAME ${name} COMMAND bash ${source} ${setting_args})
  apply_settings(${name} script)
  if(name STREQUAL "bits")
    add_guarded_test(${name} script bash ${source} ${setting_args})
  endif()
endforeach()

file(GLOB sources CONFIGURE_DEPENDS bench/*.c)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE src)
  target_link_libraries(${name} PRIVATE lockstep_static Threads::Threads ZLIB::ZLIB m ${CMAKE_DL_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endforeach()

# Fuzzers: with libFuzzer under LK_FUZZ, otherwise a replay of the stored corpus.
file(GLOB sources CONFIGURE_DEPENDS test/fuzz/fuzz_*.c)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  string(REPLACE "fuzz_" "" format ${name})
  if(LK_FUZZ)
    add_executable(${name} ${source})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  elseif(EXISTS ${PROJECT_SOURCE_DIR}/test/fuzz/replay.c)
    add_executable(${name} ${source} test/fuzz/replay.c)
    add_test(NAME ${name} COMMAND ${name} ${PROJECT_SOURCE_DIR}/test/fuzz/corpus/${format})
    read_settings(${source})
    apply_settings(${name} fuzz)
  else()
    continue()
  endif()
  target_include_directories(${name} PRIVATE src .)
  target_compile_options(${name} PRIVATE ${test_options})
  target_link_libraries(${name} PRIVATE lockstep_static Threads::Threads ZLIB::ZLIB m ${CMAKE_DL_LIBS})
  if(format STREQUAL "config")
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:cli_objects>)
  endif()
endforeach()
