#!/usr/bin/env bash
# storm_peers.sh - faults in trainings of two to four ranks that share a GPU: a random rank is killed or stopped while
# its steps run as graphs. Each time the job ends within its deadline and 5 s, names that rank and no other, leaves no
# process, and the last checkpoint loads; at the end the GPU has as much free memory as before. Skipped where there is
# no GPU, or no nvidia-cuda-mps-control.
#
#   KILLS=n STOPS=n storm_peers.sh mps     over p2p, under MPS, whose daemon is started here: 25 kills, no stops
#   KILLS=n STOPS=n storm_peers.sh turns   through the host's memory, without MPS: 25 kills, 10 stops
# LOGS=DIR keeps the messages of each round there.
# ctest: timeout 1800, label gpu
set -u
: "${LOCKSTEP:?the command}" "${SOURCE_DIR:?the tree}"
mode=${1:-mps} timeout=5
case $mode in
mps) kills=${KILLS:-25} stops=${STOPS:-0} ;;
turns) kills=${KILLS:-25} stops=${STOPS:-10} ;;
*) echo "storm_peers.sh: mps or turns, not $mode" >&2; exit 2 ;;
esac
"$LOCKSTEP" info 2> /dev/null | grep -q 'cuda:0: ' || { echo "skipped: no GPU"; exit 77; }
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
mark_jobs
trap 'end_all' EXIT
end_all() {
    local pid
    for pid in $(members) $job; do kill -KILL "$pid" 2> /dev/null || true; done
    [ $mode = turns ] || echo quit | timeout 30 nvidia-cuda-mps-control > /dev/null 2>&1
    rm -rf "$work"
}
export CUDA_MPS_PIPE_DIRECTORY=$work/pipe CUDA_MPS_LOG_DIRECTORY=$work/log XDG_CACHE_HOME=$work/cache
if [ $mode = mps ]; then
    command -v nvidia-cuda-mps-control > /dev/null || { echo "skipped: no nvidia-cuda-mps-control"; exit 77; }
    mkdir "$work/pipe" "$work/log"
    nvidia-cuda-mps-control -d || fail "the daemon of MPS does not start"
    wait_until 10 test -e "$work/pipe/control" || exit 1
fi
fail() { echo "round ${round:-0} (${what:-}): $*"; exit 1; }

data="--model gpt --data synthetic --layers 2 --heads 2 --width 64 --context 64 --batch 24 --threads 1"
# shellcheck disable=SC2086
train() { # train WORDS…
    exec env "$mark" "$LOCKSTEP" train $data --device cuda --share-device --steps 1000000 --eval-every -1 --save run \
        --save-every 200 --timeout $timeout --log steps.log "$@"
}
used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2> /dev/null; }
is_free() { [ "$(used)" -le $((before + 8)) ]; }
now() { date +%s.%N; }

# A first run, whose MPS server and algorithms stay.
(train --steps 300) > out.txt 2> err.txt < /dev/null || fail "without faults: $(cat err.txt)"
before=$(used) longest=0
for round in $(seq $((kills + stops))); do
    ranks=$((RANDOM % 3 + 2))
    victim=$((RANDOM % ranks))
    signal=KILL
    [ "$round" -le "$kills" ] || signal=STOP
    what="SIG$signal to rank $victim of $ranks"
    rm -rf run steps.log
    (train -n $ranks) > out.txt 2> err.txt < /dev/null &
    job=$!
    wait_until_job 60 grep -qs '"step": 20,' steps.log || fail "$(cat err.txt)"
    pause_randomly 0 1500
    pid=$(rank_pid "$victim")
    [ -n "$pid" ] || fail "rank $victim does not run: $(cat err.txt)"
    begin=$(now)
    kill -$signal "$pid"
    await_end $((timeout + 20))
    [ -z "${LOGS:-}" ] || cp err.txt "$LOGS/storm_$mode.$round.txt"
    seconds=$(awk "BEGIN { printf \"%.1f\", $(now) - $begin }")
    awk "BEGIN { exit !($seconds <= $timeout + 5) }" || fail "it ended after $seconds s: $(cat err.txt)"
    longest=$(awk "BEGIN { print ($seconds > $longest) ? $seconds : $longest }")
    [ $code != 0 ] || fail "exit status 0"
    if [ $mode = mps ] && grep -q "not directly" err.txt; then fail "it did not exchange over p2p: $(cat err.txt)"; fi
    if [ $signal = KILL ]; then
        grep -q "rank $victim failed first: signal 9" err.txt || fail "the launcher does not name it: $(cat err.txt)"
    else
        grep -Eq "rank $victim .*(stopped by a signal|missing)" err.txt || fail "nobody names it: $(cat err.txt)"
    fi
    ! grep -e "<- missing" err.txt | sed 's/^\[rank [0-9]*\]//' | grep -qv "^ *rank $victim[ ,]" ||
        fail "the wrong rank: $(cat err.txt)"
    ! grep -i "illegal memory access" err.txt | grep -qv "rank $victim" || fail "its own fault: $(cat err.txt)"
    if [ -e run/state.json ]; then
        # shellcheck disable=SC2086
        "$LOCKSTEP" eval --load run $data --device cpu > /dev/null 2> eval.txt ||
            fail "the checkpoint does not load: $(cat eval.txt)"
    fi
    saved=none
    [ ! -e run/state.json ] || saved="of step $(field step < run/state.json)"
    echo "round $round: $what, ended after $seconds s, checkpoint $saved"
done
wait_until 10 is_free || fail "$(used) MiB of the GPU are in use, and $before before"
echo "$kills kills and $stops stops ($mode): none took longer than $longest s"
