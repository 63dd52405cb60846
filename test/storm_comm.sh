#!/usr/bin/env bash
# The long form of test_comm_faults: 200 rounds in which a rank is killed or stopped in the middle of collectives.
set -eu
"$BUILD_DIR/test_comm_faults" 200
