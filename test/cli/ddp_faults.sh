#!/usr/bin/env bash
# ddp_faults.sh - a few rounds of storm_ddp.sh: at least one kill, one NaN and one stop.
# ctest: timeout 300, ranks 4
ROUNDS=${ROUNDS:-4} exec bash "$SOURCE_DIR/test/cli/storm_ddp.sh"
