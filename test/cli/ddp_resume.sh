#!/usr/bin/env bash
# ddp_resume.sh - a job that is killed and resumed with another number of ranks ends with the bits of an uninterrupted
# run with one rank: with --reproducible at 1, 4, 3 and 2 ranks, after SIGKILL to the process, to a rank and to the
# launcher, in the middle of epochs. Without it the losses after a change of size differ only by rounding.
# ctest: timeout 400, ranks 4
set -eu
work=$(mktemp -d)
job=
finish() { if [ -n "$job" ]; then kill -KILL "$job" 2> /dev/null || true; fi; rm -rf "$work"; }
trap finish EXIT
cd "$work"
fail() { echo "$*"; exit 1; }
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([-0-9a-zA-Z.+]*\).*/\1/p"; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"

saved() { if [ -e "$1/state.json" ]; then field step < "$1/state.json"; else echo 0; fi; }
has_saved() { [ "$(saved run)" -ge "$1" ]; }
rank_pid() { # the process of rank $1 of the job
    local pid
    for pid in $(pgrep -P "$job"); do
        if tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | grep -qx "RANK=$1"; then echo "$pid"; return; fi
    done
}

# run_and_kill RANKS VICTIM MORE: runs until MORE further steps are saved, then kills rank VICTIM, or the "job".
run_and_kill() {
    local ranks=$1 victim=$2 goal code=0 before members
    before=$(saved run)
    goal=$((before + $3))
    # shellcheck disable=SC2086
    "$LOCKSTEP" train -n "$ranks" $options --save run --resume auto > out.json 2> err.txt &
    job=$!
    wait_until_job 60 has_saved $goal || fail "$ranks ranks did not reach step $goal: $(cat err.txt)"
    members=$(pgrep -P "$job" || true)
    if [ "$victim" = job ]; then kill -KILL "$job"; else kill -KILL "$(rank_pid "$victim")"; fi
    wait "$job" 2> /dev/null || code=$?
    job=
    [ $code != 0 ] || fail "$ranks ranks: the job ended before the kill: more steps are needed"
    if [ "$victim" != job ]; then
        grep -q "rank $victim" err.txt || fail "$ranks ranks: no message names rank $victim: $(cat err.txt)"
    fi
    for pid in $members; do wait_for_end 10 "$pid" || fail "$ranks ranks: process $pid survived the kill"; done
    [ "$(saved run)" -ge "$before" ] || fail "went back from step $before to $(saved run)"
    echo "  $ranks ranks, killed $victim: saved step $(saved run)"
}

check_model() { # check_model NAME OPTIONS…
    options="${*:2} --threads 1 --seed 3 --eval-every -1 --reproducible --json"
    rm -rf run whole
    # shellcheck disable=SC2086
    "$LOCKSTEP" train $options --save whole > whole.json 2> err.txt || fail "$1, uninterrupted: $(cat err.txt)"
    echo "$1:"
    run_and_kill 1 job $((RANDOM % 3 + 2))
    run_and_kill 4 $((RANDOM % 4)) $((RANDOM % 3 + 2))
    run_and_kill 3 job $((RANDOM % 3 + 2))
    # shellcheck disable=SC2086
    "$LOCKSTEP" train -n 3 $options --save run --resume auto > out.json 2> err.txt ||
        fail "$1, the last run: $(cat err.txt)"
    grep -q 'resumed' err.txt || fail "$1: the last run did not resume: $(cat err.txt)"
    [ "$(field hash < out.json)" = "$(field hash < whole.json)" ] ||
        fail "$1: killed and resumed: $(cat out.json), uninterrupted: $(cat whole.json)"
    cmp whole/model.safetensors run/model.safetensors
    cmp whole/optimizer.safetensors run/optimizer.safetensors
    echo "  the same result: $(field hash < out.json)"
}

# With batches of 24 an epoch has 9 steps, the last of 8 samples; with batches of 14 it has 5, the last of 4.
check_model cnn --model cnn --data synthetic:3x16x16,count=200 --batch 24 --steps 60 --save-every 1
check_model "resnet20 with synchronised batch norm" --model resnet20 --sync-batchnorm --data synthetic:3x8x8,count=60 \
    --batch 14 --steps 40 --save-every 1

# Without --reproducible: only the rounding of sums differs.
options="--model cnn --data synthetic:3x32x32,count=200 --batch 24 --threads 1 --seed 3 --eval-every -1"
losses() { sed -n 's/.*"event": *"step", *"step": *\([0-9]*\).*"loss": *\([-0-9.e+]*\).*/\1 \2/p' "$1"; }
# shellcheck disable=SC2086
"$LOCKSTEP" train $options --steps 20 --log whole.jsonl 2> err.txt || fail "$(cat err.txt)"
for sizes in "1 3" "3 2" "4 1"; do
    rm -rf run parts.jsonl
    # shellcheck disable=SC2086
    "$LOCKSTEP" train -n "${sizes% *}" $options --steps 11 --save run --log parts.jsonl 2> err.txt ||
        fail "$(cat err.txt)"
    # shellcheck disable=SC2086
    "$LOCKSTEP" train -n "${sizes#* }" $options --steps 20 --save run --resume auto --log parts.jsonl 2> err.txt ||
        fail "$(cat err.txt)"
    worst=$(join <(losses whole.jsonl | sort) <(losses parts.jsonl | sort) |
        awk '{ d = ($2 - $3) / $2; if (d < 0) d = -d; if (d > w) w = d; n++ }
            END { print n, w + 0, (n == 20 && w <= 1e-4) ? "ok" : "far" }')
    [ "${worst##* }" = ok ] || fail "sizes $sizes: steps and worst difference: $worst"
    echo "sizes $sizes: $worst"
done
