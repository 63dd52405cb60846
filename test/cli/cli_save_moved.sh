#!/usr/bin/env bash
# cli_save_moved.sh - what a user does to the directory of a run while it runs: moved away, it is created and locked
# again, and no second run is admitted; a file in place of a link stays; a damaged step with a file of the user's stops
# no restart. ctest: timeout 120
set -eu
work=$(mktemp -d)
job=
trap 'if [ -n "$job" ]; then kill -KILL "$job" 2> /dev/null || true; fi; rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$*"; [ ! -f out ] || cat out; exit 1; }
small="--model mlp --threads 1 --eval-every -1"
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"

wait_for() { # COMMAND…: until it succeeds
    wait_until_job 60 "$@" > /dev/null 2>&1 || fail "the run ended before, or not within 60 s: $*"
}
start() { # a run, $job, that has saved a step
    rm -f out
    # shellcheck disable=SC2086
    "$LOCKSTEP" train $small --steps 100000000 --save run --save-every 2000 > out 2>&1 &
    job=$!
    wait_for test -e run/state.json
}
ended() { # ended STATUS
    local status=0
    wait "$job" || status=$?
    job=
    [ $status = "$1" ] || fail "exit status $status, not $1"
}

# Moved away: the next save creates and locks it again.
start
mv run before
wait_for test -e run/state.json
wait_for grep -q 'run was moved away, removed or replaced during the run: it was created and locked again' out
[ -e before/state.json ] || fail "what was moved away is not complete"
status=0
# shellcheck disable=SC2086
"$LOCKSTEP" train $small --steps 5 --save run --resume auto > second 2>&1 || status=$?
[ $status = 2 ] && grep -q \
    "run is being written by another run (host .* pid $job," second || fail "a second run: $status, $(cat second)"

# A file that takes the place of a link stays, and the run goes on.
echo mine > file
mv file run/model.safetensors
wait_for grep -q 'run/model.safetensors is not a link created by a save: it is left' out
step=$(readlink run/state.json)
wait_for bash -c "test \"\$(readlink run/state.json)\" != $step"
kill -TERM "$job"
ended 143
[ "$(cat run/model.safetensors)" = mine ] || fail "the user's file was replaced"
[ "$(grep -c 'is not a link' out)" = 1 ] || fail "more than one warning"
"$LOCKSTEP" info "run/$(dirname "$(readlink run/state.json)")" > /dev/null || fail "the last step is not complete"

# The name is another run's at once, which a link shows: this one stops, and writes nothing there.
mkdir first
rm -rf run
ln -s first run
start
ln -s before other
mv -T other run
ended 1
grep -q 'step [0-9]* could not be saved: run was moved away.*now holds a checkpoint of another run' out ||
    fail "no reason"
[ -e first/state.json ] || fail "the first run's steps are lost"

# A damaged step with a file of the user's in it: a restart goes past it.
# shellcheck disable=SC2086
"$LOCKSTEP" train $small --steps 6 --save damaged --save-every 3 > out 2>&1
echo note > damaged/step-00000006/note
truncate -s 50 damaged/step-00000006/state.json
# shellcheck disable=SC2086
"$LOCKSTEP" train --steps 9 --save damaged --resume auto > out 2>&1 || fail "a damaged step stopped the restart"
[ -e damaged/step-00000006.damaged/note ] && [ -e damaged/step-00000009/state.json ] || fail "$(ls -R damaged)"
"$LOCKSTEP" info damaged/step-00000006 > /dev/null || fail "step 6 was not written again"
