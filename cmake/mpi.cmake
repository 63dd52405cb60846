# The MPI modules: one small shared object for each MPI whose compiler is found and links; src/comm/mpi/load.c loads it
# when it is needed. Compiled by mpicc, which knows the paths of its MPI.
set(LK_MPI AUTO CACHE STRING
    "Build the MPI modules: AUTO (for each MPI whose mpicc works), OFF, or openmpi, mpich or both, comma-separated (an \
error if one does not work)")
string(REPLACE "," ";" mpi_required "${LK_MPI}")
if(LK_MPI MATCHES "^(AUTO|)$")
  set(mpi_required "")
elseif(NOT LK_MPI STREQUAL "OFF")
  foreach(flavour ${mpi_required})
    if(NOT flavour MATCHES "^(openmpi|mpich)$")
      message(FATAL_ERROR "LK_MPI is ${LK_MPI}: choose AUTO, OFF, openmpi, mpich, or openmpi,mpich")
    endif()
  endforeach()
endif()
set(mpi_flags -std=gnu11 -O2 -Wall -Wextra -fvisibility=hidden -fPIC -shared)
if(LK_WERROR)
  list(APPEND mpi_flags -Werror)
endif()
set(mpi_environment ${CMAKE_COMMAND} -E env OMPI_CC=${CMAKE_C_COMPILER} MPICH_CC=${CMAKE_C_COMPILER})

# Sets `works` if `mpicc` compiles and links a shared object, `why` if not: wrappers are often there without their
# headers, libraries or compiler.
function(probe_mpicc mpicc)
  set(works FALSE)
  set(directory ${PROJECT_BINARY_DIR}/mpi)
  file(WRITE ${directory}/probe.c
      "#include <mpi.h>\nint probe(void);\n"
      "int probe(void) { int done = 0; return MPI_Initialized(&done) == MPI_SUCCESS && done; }\n")
  execute_process(COMMAND ${mpi_environment} ${mpicc} ${mpi_flags} ${directory}/probe.c -o ${directory}/probe.so
                  RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 60)
  if(failed STREQUAL "0")
    set(works TRUE)
  else()
    find_reason("${output}" "${failed}" reason)
    set(why "${reason}" PARENT_SCOPE)
  endif()
  set(works ${works} PARENT_SCOPE)
endfunction()

set(mpi_modules)
set(mpi_flavours)
if(NOT LK_MPI STREQUAL "OFF")
  find_program(LK_MPICC mpicc)
  set(plain_flavour "")
  if(LK_MPICC) # of Open MPI or of MPICH?
    execute_process(COMMAND ${LK_MPICC} --showme:version OUTPUT_VARIABLE version ERROR_VARIABLE version)
    set(plain_flavour mpich)
    if(version MATCHES "Open MPI")
      set(plain_flavour openmpi)
    endif()
  endif()
  set(flavours openmpi mpich)
  if(mpi_required)
    set(flavours ${mpi_required})
  endif()
  foreach(flavour ${flavours})
    find_program(LK_MPICC_${flavour} NAMES mpicc.${flavour})
    set(candidates)
    if(LK_MPICC_${flavour})
      list(APPEND candidates ${LK_MPICC_${flavour}})
    endif()
    if(plain_flavour STREQUAL flavour)
      list(APPEND candidates ${LK_MPICC})
    endif()
    foreach(mpicc ${candidates})
      probe_mpicc(${mpicc})
      if(NOT works)
        message(STATUS "No MPI module built with ${mpicc}, which cannot link a shared object: ${why}")
        continue()
      endif()
      set(module ${PROJECT_BINARY_DIR}/lockstep_mpi_${flavour}.so)
      add_custom_command(
        OUTPUT ${module}
        COMMAND ${mpi_environment} ${mpicc} ${mpi_flags} -I ${PROJECT_SOURCE_DIR}/src
                ${PROJECT_SOURCE_DIR}/src/comm/mpi/module.c -o ${module}
        DEPENDS src/comm/mpi/module.c src/comm/mpi/module.h
        COMMENT "Building the MPI module for ${flavour}"
        VERBATIM)
      list(APPEND mpi_modules ${module})
      list(APPEND mpi_flavours ${flavour})
      message(STATUS "MPI module: ${flavour}, built with ${mpicc}")
      break()
    endforeach()
  endforeach()
  foreach(flavour ${mpi_required})
    if(NOT flavour IN_LIST mpi_flavours)
      message(FATAL_ERROR "LK_MPI is ${LK_MPI}, but no mpicc of ${flavour} that compiles and links was found")
    endif()
  endforeach()
  if(NOT mpi_flavours)
    message(STATUS "No MPI module: no mpicc that compiles and links was found")
  endif()
endif()
add_custom_target(mpi_modules ALL DEPENDS ${mpi_modules})
install(FILES ${mpi_modules} DESTINATION ${CMAKE_INSTALL_LIBDIR}/lockstep)

# The modules' directory relative to the command's, so that an installed tree can be moved.
file(RELATIVE_PATH LK_MODULES_FROM_BIN ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/lockstep)
list(JOIN mpi_flavours " " mpi_flavours_text)
target_compile_definitions(lockstep_objects PRIVATE LK_MODULES_FROM_BIN="${LK_MODULES_FROM_BIN}")
target_compile_definitions(cli_objects PRIVATE LK_BUILT_MPI="${mpi_flavours_text}")
