#!/usr/bin/env bash
# train_restarts.sh - `train -n N --max-restarts M`: all ranks are started again after a rank was killed, resume what
# was saved, and end with the bits of a run that was never interrupted; restarts end at M; mistakes in options are not
# tried again.
# ctest: timeout 240, ranks 2
set -u
work=$(mktemp -d)
job=
finish() { [ -z "$job" ] || kill -KILL "$job" 2> /dev/null; rm -rf "$work"; }
trap finish EXIT
cd "$work" || exit 1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
wrong=0
complain() { echo "$*" >&2; wrong=1; }
train=("$LOCKSTEP" train -n 2 --model mlp --data synthetic:64,count=200 --batch 20 --eval-every -1 --threads 1)
rank_pid() {
    local pid
    for pid in $(pgrep -P "$job"); do
        if tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | grep -qx "RANK=1"; then echo "$pid"; return; fi
    done
}
saved_step() { grep -o '"step": *[0-9]*' run/state.json 2> /dev/null | head -1 | grep -o '[0-9]*$'; }
has_saved() { local step; step=$(saved_step); [ "${step:-0}" -ge "$1" ]; }
# kill_after STEP: rank 1, once that step was saved
kill_after() {
    wait_until_job 60 has_saved "$1" || return
    kill -KILL "$(rank_pid)"
}

steps=1000
"${train[@]}" --save-every 5 --steps $steps --save whole > out.txt 2> whole.txt ||
    complain "a run that is not interrupted: $(cat whole.txt)"
"${train[@]}" --steps 10 --save before > out.txt 2> before.txt || complain "before: $(cat before.txt)"

# Twice killed, also one that was resumed from another directory.
for from in '' before; do
    rm -rf run
    "${train[@]}" --save-every 5 --steps $steps --save run --max-restarts 2 ${from:+--resume $from} > out.txt 2> \
        run.txt &
    job=$!
    kill_after 50
    kill_after 300
    wait $job || complain "killed twice: exit status $?: $(grep -vE '^(saved|epoch)' run.txt)"
    job=
    grep -q 'rank 1 failed first: signal 9' run.txt && grep -q 'restarting all ranks: restart 2 of 2' run.txt ||
        complain "killed twice: $(grep -vE '^(saved|epoch)' run.txt)"
    [ "$(grep -c '^resumed run at step' run.txt)" = 2 ] ||
        complain "killed twice: not resumed: $(grep -vE '^(saved|epoch)' run.txt)"
    cmp -s whole/model.safetensors run/model.safetensors ||
        complain "killed twice: other weights than those of a run that was not interrupted"
done

# The last failure is the job's.
rm -rf run
"${train[@]}" --save-every 5 --steps 1000000 --save run --max-restarts 1 > out.txt 2> run.txt &
job=$!
kill_after 5
kill_after 100
wait $job
code=$?
job=
[ $code = 137 ] && [ "$(grep -c 'restarting all ranks' run.txt)" = 1 ] ||
    complain "one restart, two failures: exit status $code: $(grep -vE '^(saved|epoch)' run.txt)"

"${train[@]}" --steps 5 --max-restarts 1 > out.txt 2>&1 || complain "without --save: $(cat out.txt)"
grep -q 'without --save, restarted ranks start from scratch' out.txt || complain "without --save: $(cat out.txt)"
"${train[@]}" --steps 5 --max-restarts 3 --data nothing > out.txt 2>&1
code=$?
[ $code = 2 ] && ! grep -q 'restarting all ranks' out.txt || complain "a mistake: exit status $code: $(cat out.txt)"
"$LOCKSTEP" train --model mlp --data synthetic:64,count=200 --max-restarts 1 --steps 1 > out.txt 2>&1
code=$?
[ $code = 2 ] && grep -q -- '--max-restarts requires -n N' out.txt ||
    complain "without -n: exit status $code: $(cat out.txt)"
exit $wrong
