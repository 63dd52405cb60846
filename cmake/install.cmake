# What `cmake --install` installs: headers, both libraries, the command, man pages, completions of shells, lockstep.pc
# and the package for find_package. The static library has its own export, so that users of the shared one need neither
# zlib's headers nor its CMake module.
install(TARGETS lockstep EXPORT lockstep_shared
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS lockstep_static EXPORT lockstep_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS lockstep_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
add_custom_target(installed) # all of this, without tests, examples and benchmarks
add_dependencies(installed lockstep lockstep_static lockstep_command man mpi_modules)
if(TARGET cuda_module)
  add_dependencies(installed cuda_module)
endif()
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY ${PROJECT_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
install(FILES ${PROJECT_BINARY_DIR}/completions/lockstep DESTINATION
    ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions)
install(FILES ${PROJECT_BINARY_DIR}/completions/_lockstep DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/zsh/site-functions)
install(FILES ${PROJECT_BINARY_DIR}/completions/lockstep.fish DESTINATION
    ${CMAKE_INSTALL_DATAROOTDIR}/fish/vendor_completions.d)

set(image_packages)
set(pc_image_libraries)
if(LK_PNG_LINKS)
  string(APPEND image_packages " PNG")
  string(APPEND pc_image_libraries " -lpng")
endif()
if(LK_JPEG_LINKS)
  string(APPEND image_packages " JPEG")
  string(APPEND pc_image_libraries " -ljpeg")
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
set_target_properties(lockstep_static PROPERTIES EXPORT_NAME static)
install(EXPORT lockstep_shared NAMESPACE lockstep:: FILE lockstep-shared.cmake DESTINATION ${package_dir})
install(EXPORT lockstep_static NAMESPACE lockstep:: FILE lockstep-static.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/lockstep-config.cmake.in ${PROJECT_BINARY_DIR}/lockstep-config.cmake
    INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lockstep-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lockstep-config.cmake ${PROJECT_BINARY_DIR}/lockstep-config-version.cmake
    DESTINATION ${package_dir})

# Directories relative to lockstep.pc, so that an installed tree can be moved.
file(RELATIVE_PATH pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_up "${pc_up}")
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
  set(pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
  set(pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
  set(pc_prefix "\${pcfiledir}/${pc_up}")
  set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(cmake/lockstep.pc.in ${PROJECT_BINARY_DIR}/lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
