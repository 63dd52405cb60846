#!/usr/bin/env bash
# cli_mesh_hosts.sh - meshes over several hosts, which LOCKSTEP_HOST_ID simulates: data with shard, with tensor, and all
# three, and experts with data or shard give the losses and weights of one rank, whichever axis crosses hosts; a warning
# names the axis along which most is sent if that is the one, and none is printed where it stays within hosts.
# ctest: timeout 300, ranks 8
# shellcheck disable=SC2086 # options are lists of words
set -u
: "${LOCKSTEP:?the command}" "${SOURCE_DIR:?the tree}"
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

run="--model llama --layers 2 --width 32 --heads 4 --kv-heads 2 --context 16 --vocabulary 64 --data synthetic"
run+=" --batch 64 --threads 1 --dtype f64 --eval-every -1 --clip 0.5 --optimizer adamw --lr 0.003"
# shellcheck disable=SC2016
on_hosts() { # on_hosts RANKS EACH OPTIONS...: so many of them on each host
    local ranks=$1
    export EACH=$2
    shift 2
    rm -rf run run.jsonl
    timeout -s KILL 100 "$LOCKSTEP" run -n "$ranks" -- \
        bash -c 'export LOCKSTEP_HOST_ID=host-$((RANK / EACH)); exec "$@"' - \
        "$LOCKSTEP" train $run --backend mixed --steps 4 --save run --log run.jsonl "$@" > out.txt 2>&1 ||
        { complain "$ranks ranks, $EACH on a host, $*: $(tail -n 5 out.txt)"; return 1; }
}
"$LOCKSTEP" train $run --steps 4 --save one --log one.jsonl > one.txt 2>&1 || fail "one rank: $(cat one.txt)"
# hosts RANKS EACH AXIS OPTIONS...: AXIS is the one that the warning names, - without one
hosts() {
    local axis=$3 found warned
    on_hosts "$1" "$2" --mesh "${@:4}" || return
    found=$(python3 "$SOURCE_DIR/test/cli/layouts.py" 1e-9 one run 2>&1) || complain "${*:4}, $2 ranks a host: $found"
    warned=$(sed -nE 's/.*warning: the ([a-z]+) axis, .* crosses host boundaries, .*/\1/p' out.txt)
    [ "${warned:--}" = "$axis" ] ||
        complain "${*:4}, $2 ranks a host: warns of '$warned', not of '$axis': $(cat out.txt)"
}

# The last axis joins neighbours, so it stays within hosts.
hosts 4 2 - data=2,shard=2 --state replicated
hosts 4 2 - data=2,tensor=2
hosts 4 2 - data=2,tensor=2 --state replicated
hosts 4 2 - shard=2,tensor=2 --state replicated --no-sequence-parallel
# Several ranks of a host along shard gather parameters once there.
hosts 4 2 - shard=4 --verbose-ranks --trace trace.json
grep -q '"all_gather once on every host: parameters"' trace.json || complain "no such gather in the trace"
grep -q 'gathered once for 2 ranks on a host' out.txt || complain "shard=4: $(cat out.txt)"
hosts 6 3 - shard=6 --accumulate 2
hosts 8 4 - shard=4,tensor=2 --recompute
hosts 4 2 pipeline pipeline=2,data=2 --micro-batches 4
hosts 4 2 - pipeline=2,tensor=2 --micro-batches 4 --pipeline-schedule zero-bubble
# The other way round the busiest one crosses them.
hosts 4 2 shard shard=2,data=2
hosts 4 2 tensor tensor=2,data=2
# Where a host has fewer ranks than the axis, no order of axes helps.
hosts 4 1 tensor data=2,tensor=2
grep -q 'boundaries, with 1 rank per host: limit the size of this axis to the number of ranks per host' out.txt ||
    complain "$(cat out.txt)"
# All three: each of two hosts has a copy of the state, in four parts; then in parts on both hosts.
hosts 8 4 - data=2,shard=2,tensor=2
hosts 8 4 tensor tensor=2,data=2,shard=2

# Experts, with hosts that their axis crosses or not, whose ranks are as many or not; parts of their state, too.
run=${run/llama/mixtral --experts 4 --router-loss 0.02}
rm -rf one one.jsonl
"$LOCKSTEP" train $run --steps 4 --save one --log one.jsonl > one.txt 2>&1 || fail "experts: $(cat one.txt)"
hosts 4 2 - data=2,expert=2
hosts 8 4 shard shard=4,expert=2 --verbose-ranks
grep -q 'gathered once for 4 ranks on a host' out.txt || complain "shard=4,expert=2: $(cat out.txt)"
hosts 3 2 - shard=3
# On hosts of 4 and of 2 ranks, groups of 3 are within hosts in neither order.
hosts 6 4 shard shard=3,expert=2
grep -q 'with 4 ranks per host: choose a size for this axis that divides the number of ranks per host' out.txt ||
    complain "$(cat out.txt)"
exit $((wrong > 0))
