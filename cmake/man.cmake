# Writes the man pages of the command and of each subcommand, from its option tables, into OUT/man, and the scripts that
# complete its command lines into OUT/completions.
file(REMOVE_RECURSE ${OUT}/man ${OUT}/completions)
file(MAKE_DIRECTORY ${OUT}/man ${OUT}/completions)
execute_process(COMMAND ${COMMAND} help --names OUTPUT_VARIABLE names COMMAND_ERROR_IS_FATAL ANY)
string(STRIP "${names}" names)
string(REPLACE "\n" ";" names "${names}")
foreach(name ${names})
  execute_process(COMMAND ${COMMAND} help --man ${name} OUTPUT_FILE ${OUT}/man/lockstep-${name}.1 COMMAND_ERROR_IS_FATAL
      ANY)
endforeach()
execute_process(COMMAND ${COMMAND} help --man lockstep OUTPUT_FILE ${OUT}/man/lockstep.1 COMMAND_ERROR_IS_FATAL ANY)

# Under the names that the shells look for.
foreach(pair bash:lockstep zsh:_lockstep fish:lockstep.fish)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 shell)
  list(GET pair 1 file)
  execute_process(COMMAND ${COMMAND} completion ${shell} OUTPUT_FILE ${OUT}/completions/${file} COMMAND_ERROR_IS_FATAL
      ANY)
endforeach()
