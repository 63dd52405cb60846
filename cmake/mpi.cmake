# The MPI modules: one small shared object for each MPI whose compiler is found; src/comm/mpi/load.c loads it when it is needed.
# Compiled by mpicc, which knows the paths of its MPI.
set(mpi_modules)
foreach(flavour openmpi mpich)
  find_program(LK_MPICC_${flavour} NAMES mpicc.${flavour})
endforeach()
if(NOT LK_MPICC_openmpi AND NOT LK_MPICC_mpich)
  find_program(LK_MPICC mpicc)
  if(LK_MPICC) # of Open MPI or of MPICH?
    execute_process(COMMAND ${LK_MPICC} --showme:version OUTPUT_VARIABLE version ERROR_VARIABLE version)
    if(version MATCHES "Open MPI")
      set(LK_MPICC_openmpi ${LK_MPICC})
    else()
      set(LK_MPICC_mpich ${LK_MPICC})
    endif()
  endif()
endif()
foreach(flavour openmpi mpich)
  if(LK_MPICC_${flavour})
    set(module ${PROJECT_BINARY_DIR}/lockstep_mpi_${flavour}.so)
    add_custom_command(
      OUTPUT ${module}
      COMMAND ${CMAKE_COMMAND} -E env OMPI_CC=${CMAKE_C_COMPILER} MPICH_CC=${CMAKE_C_COMPILER} ${LK_MPICC_${flavour}} -std=gnu11 -O2
              -Wall -Wextra $<$<BOOL:${LK_WERROR}>:-Werror> -fvisibility=hidden -fPIC -shared -I ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/src/comm/mpi/module.c -o ${module}
      DEPENDS src/comm/mpi/module.c src/comm/mpi/module.h
      COMMENT "Building the MPI module for ${flavour}"
      VERBATIM)
    list(APPEND mpi_modules ${module})
    list(APPEND mpi_flavours ${flavour})
  endif()
endforeach()
add_custom_target(mpi_modules ALL DEPENDS ${mpi_modules})
install(FILES ${mpi_modules} DESTINATION ${CMAKE_INSTALL_LIBDIR}/lockstep)

# The modules' directory relative to the command's, so that an installed tree can be moved.
file(RELATIVE_PATH LK_MODULES_FROM_BIN ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/lockstep)
list(JOIN mpi_flavours " " mpi_flavours_text)
target_compile_definitions(lockstep_objects PRIVATE LK_MODULES_FROM_BIN="${LK_MODULES_FROM_BIN}")
target_compile_definitions(cli_objects PRIVATE LK_BUILT_MPI="${mpi_flavours_text}")
