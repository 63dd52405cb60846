#!/usr/bin/env bash
# state_kill_hosts.sh - state_kill.sh with four ranks on two simulated hosts, each of which has one copy of the state: a
# killed rank of one, or all of one, ends the job on both, is named, and the last checkpoint resumes to the undisturbed
# hash. ctest: timeout 300, ranks 4
exec bash "$SOURCE_DIR/test/cli/state_kill.sh" "${1:-5}" 4 2
