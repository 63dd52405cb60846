# Every test/test_*.c, test/*.cpp and test/*.sh is one test in its own process. One line near its top may set how it is run:
#
#   ctest: timeout 300, label threaded, args --steps 2        (each part is optional)
#
# The default timeout is 120 seconds. Exit status 77 means "skipped". Scripts get these environment variables:
# LOCKSTEP (the command), SOURCE_DIR, BUILD_DIR, CC, LK_SANITIZE.
set(default_timeout 120)
set(slowness 1)
if(LK_SANITIZE)
  set(slowness 6)
endif()

# Not with gcc: its code (12 was measured) does not release the small frames of the stack that this check replaces the real one with.
# After some thousand calls every further call searches all of them: 13 µs each, 98 % of the time of test_comm.
set(detect_stack_use_after_return 1)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  set(detect_stack_use_after_return 0)
endif()

set(test_environment "LOCKSTEP=$<TARGET_FILE:lockstep_command>" "SOURCE_DIR=${PROJECT_SOURCE_DIR}" "BUILD_DIR=${PROJECT_BINARY_DIR}"
    "CC=${CMAKE_C_COMPILER}" "LK_SANITIZE=${LK_SANITIZE}" "UBSAN_OPTIONS=print_stacktrace=1")

# Reads the settings of the test in `source`: setting_timeout, setting_labels, setting_args.
function(read_settings source)
  file(STRINGS ${source} lines REGEX "ctest: " LIMIT_INPUT 4096)
  set(setting_timeout ${default_timeout})
  set(setting_labels "")
  set(setting_args "")
  foreach(line ${lines})
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
  set(setting_timeout ${setting_timeout} PARENT_SCOPE)
  set(setting_labels ${setting_labels} PARENT_SCOPE)
  set(setting_args ${setting_args} PARENT_SCOPE)
endfunction()

# Applies the settings to `test`. Scripts start many short processes, and the leak check at the end of each can take seconds: only
# other kinds of test check for leaks.
function(apply_settings test kind)
  set(leaks 1)
  if(kind STREQUAL "script")
    set(leaks 0)
  endif()
  set(asan_options "detect_leaks=${leaks}:detect_stack_use_after_return=${detect_stack_use_after_return}")
  set_tests_properties(${test} PROPERTIES TIMEOUT ${setting_timeout} SKIP_RETURN_CODE 77 LABELS "${kind};${setting_labels}"
                       ENVIRONMENT "${test_environment};ASAN_OPTIONS=${asan_options}")
endfunction()

# C tests include internal headers and link the static library.
file(GLOB sources CONFIGURE_DEPENDS test/test_*.c)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE src test)
  target_compile_definitions(${name} PRIVATE LK_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LK_COMMAND="$<TARGET_FILE:lockstep_command>")
  target_link_libraries(${name} PRIVATE lockstep_static Threads::Threads ZLIB::ZLIB m ${CMAKE_DL_LIBS})
  read_settings(${source})
  add_test(NAME ${name} COMMAND ${name} ${setting_args})
  apply_settings(${name} c)
endforeach()

# Any two internal headers can be included in one file: one test includes all of them, another in reverse order. The kernels' headers
# are excluded: they are compiled once per type and instruction set.
file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR}/src CONFIGURE_DEPENDS src/*/*.h src/*/*/*.h)
list(FILTER headers EXCLUDE REGEX "^device/cpu/")
foreach(order forwards backwards)
  list(TRANSFORM headers REPLACE "(.+)" "#include \"\\1\"" OUTPUT_VARIABLE lines)
  list(JOIN lines "\n" text)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/test_headers_${order}.c CONTENT "${text}\nint main(void) { return 0; }\n" @ONLY)
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
  file(GLOB sources CONFIGURE_DEPENDS test/*.cpp)
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

# So do the examples; test/examples.sh runs them.
file(GLOB sources CONFIGURE_DEPENDS examples/*.c)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(example_${name} ${source})
  set_target_properties(example_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples OUTPUT_NAME ${name})
  target_link_libraries(example_${name} PRIVATE lockstep m)
endforeach()

# Scripts, except storm_*.sh, which take long and are run by `./x check`.
file(GLOB sources CONFIGURE_DEPENDS test/*.sh)
list(FILTER sources EXCLUDE REGEX "/storm_[^/]*$")
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  read_settings(${source})
  add_test(NAME ${name} COMMAND bash ${source} ${setting_args})
  apply_settings(${name} script)
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
  target_link_libraries(${name} PRIVATE lockstep_static Threads::Threads ZLIB::ZLIB m ${CMAKE_DL_LIBS})
  if(format STREQUAL "config")
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:cli_objects>)
  endif()
endforeach()
