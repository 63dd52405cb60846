#!/usr/bin/env bash
# storm_kill.sh - the long form of kill_resume.sh: 50 kills each of a model that mostly computes and one that mostly
# saves.
set -eu
bash "$SOURCE_DIR/test/cli/kill_resume.sh" 50 mlp
bash "$SOURCE_DIR/test/cli/kill_resume.sh" 50 cnn
