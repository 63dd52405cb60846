# ccache, where it is installed, unless another launcher was chosen.
option(LK_CCACHE "Compile with ccache if it is installed" ON)
if(LK_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
  find_program(LK_CCACHE_PROGRAM ccache)
  if(LK_CCACHE_PROGRAM)
    set(CMAKE_C_COMPILER_LAUNCHER ${LK_CCACHE_PROGRAM})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${LK_CCACHE_PROGRAM})
  endif()
endif()
