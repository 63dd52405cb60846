#!/usr/bin/env bash
# storm_comm.sh - the long form of test_comm_faults and test_comm_net_faults: 200 rounds in which a rank is killed, is
# stopped or loses a connection in the middle of collectives.
set -eu
"$BUILD_DIR/test_comm_faults" 200
"$BUILD_DIR/test_comm_net_faults" 200
