#!/usr/bin/env bash
# cli_full_disk.sh - full disks: a temporary directory without room costs a run nothing but its flight recorders; a log
# or TensorBoard file that cannot be written is reported when that happens, with file and reason, the training goes on,
# and the exit status is 1.
# ctest: timeout 120, ranks 2
set -eu
self=$(realpath "$0")
work=$(mktemp -d)
trap 'umount "$work/small" 2> /dev/null || true; rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$*"; [ ! -f out ] || cat out; exit 1; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN
small="--model mlp --threads 1 --eval-every -1 --steps 2000"
# run STATUS ARGUMENTS…
run() {
    local expected=$1 status=0
    shift
    "$LOCKSTEP" train "$@" > out 2>&1 || status=$?
    [ $status = "$expected" ] || fail "$*: exit status $status, not $expected"
}
# reported FILE WHAT: once when it happened, before the end of training, and once at the end
reported() {
    local first end
    [ "$(grep -c "No space left on device" out)" = 2 ] || fail "not one warning and one line at the end"
    first=$(grep -n "warning: $2 stopped: $1.*No space left on device; training continues" out | cut -d: -f1)
    end=$(grep -n '^2000 steps' out | cut -d: -f1)
    [ -n "$first" ] && [ -n "$end" ] && [ "$first" -lt "$end" ] || fail "no warning about $1 before the end of training"
    tail -1 out | grep -q "is incomplete: .*No space left on device" ||
        fail "the last line does not say what is incomplete"
}

# shellcheck disable=SC2086
{
run 1 $small --log /dev/full
reported /dev/full "the log"
run 1 $small --save saved --log /dev/full
[ -e saved/step-00002000/state.json ] || fail "the training did not go on"
}

# The rest needs a file system of 64 KiB, in a mount namespace that ends with the script.
if [ "${1:-}" != inside ]; then
    rm -rf saved out
    unshare -m true 2> why || { echo "skipped: no mount namespace, so no small file systems: $(cat why)"; exit 0; }
    unshare -m bash "$self" inside
    exit
fi
mkdir small
mount -t tmpfs -o size=64k none small 2> why || { echo "skipped: tmpfs cannot be mounted: $(cat why)"; exit 0; }
full() { cat /dev/zero > small/full 2> /dev/null || true; } # fills what is left

# shellcheck disable=SC2086
{
run 1 $small --log small/log.jsonl
reported small/log.jsonl "the log"
rm small/log.jsonl
run 1 $small --tensorboard small/board
reported small/board/events "TensorBoard output"
rm -r small/board

full
run 2 $small --log small/log.jsonl # at the start it is an error
grep -q 'small/log.jsonl: No space left on device' out || fail "a log on a full disk"
rm -rf small/log.jsonl
run 2 $small --tensorboard small/board
grep -q 'small/board/.*No space left on device' out || fail "TensorBoard on a full disk"

export TMPDIR=$work/small
run 0 $small -n 2 --json
grep -q '"ranks": 2' out || fail "two ranks with a full TMPDIR"
}
