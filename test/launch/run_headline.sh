#!/usr/bin/env bash
# run_headline.sh - a few rounds of storm_headline.sh: which rank the launcher names as the cause of a failure.
# ctest: timeout 300, ranks 4
ROUNDS=${ROUNDS:-4} SECONDS_MOST=${SECONDS_MOST:-120} exec bash "$SOURCE_DIR/test/launch/storm_headline.sh"
