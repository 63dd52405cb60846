#!/usr/bin/env bash
# run_ends.sh - how jobs end: exit statuses, who failed first and why, what the others were stopped by; restarts; signals.
# ctest: timeout 180
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
wrong=0
complain() { echo "$*" >&2; wrong=1; }
unset NO_COLOR LOCKSTEP_JOB

# expect STATUS ARGS…: lockstep run ARGS ends with STATUS; what it says is in out.txt, on which `says` looks.
expect() {
    local status=$1 got
    shift
    about="run $*"
    "$LOCKSTEP" run "$@" > out.txt 2>&1 < /dev/null
    got=$?
    [ "$got" = "$status" ] || complain "$about: exit status $got, not $status: $(cat out.txt)"
}
says() { grep -Eq -- "$1" out.txt || complain "$about: does not say '$1': $(cat out.txt)"; }

expect 0 -n 3 sh -c 'exit 0'
[ "$(wc -l < out.txt)" = 1 ] || complain "a job that is done says more than its first line: $(cat out.txt)"
expect 3 -n 2 --max-restarts 1 --log-dir leaks sh -c 'echo some words; exit 3'
# Sanitizers look for leaks at every exit, which takes seconds on some machines: those two were enough.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0

expect 7 -n 3 sh -c 'if [ $RANK = 1 ]; then echo "last words"; echo "of rank 1" >&2; exit 7; fi; exec sleep 600'
says "rank 1 failed first: exit code 7, at [0-9:]{8} after [0-9.]+ s, on $(uname -n), pid [0-9]+"
says "peak memory [0-9.]+ MiB"
says "^    \| last words"
says "^    \| of rank 1"
says "stopped because of rank 1: ranks 0, 2"

expect 139 -n 2 sh -c '[ $RANK = 0 ] && kill -SEGV $$; exec sleep 600'
says "rank 0 failed first: signal 11 \(SIGSEGV, Segmentation fault\)"
expect 137 -n 2 sh -c '[ $RANK = 0 ] && kill -KILL $$; exec sleep 600'
says "signal 9 \(SIGKILL, Killed\)"
[ ! -r /proc/vmstat ] || ! grep -q oom_kill /proc/vmstat || says "no kill for memory: somebody sent the signal|killed .*for memory"
expect 127 sh -c 'no-such-command-at-all'
says "exit code 127 \(command not found\)"
expect 9 -n 2 sh -c 'if [ $RANK = 0 ]; then exit 0; fi; sleep 0.3; exit 9'
says "done before that: rank 0"
expect 5 -n 2 --grace 0.3 sh -c 'if [ $RANK = 0 ]; then trap "" TERM; echo ready > ready; while :; do sleep 600; done; fi; while [ ! -e ready ]; do sleep 0.05; done; exit 5'
says "stopped because of rank 1, by SIGKILL since SIGTERM did not do it in time: rank 0"
expect 3 sh -c 'for i in $(seq 1 500); do echo "line $i"; done; exit 3'
says "^    \| line 500\$"
[ "$(grep -c '^    | ' out.txt)" = 10 ] || complain "not the last 10 lines: $(tail -20 out.txt)"

# A rank that is asked may save first, with its helpers alive: only it gets SIGTERM.
expect 4 -n 2 sh -c 'if [ $RANK = 0 ]; then sleep 601 & helper=$!; trap "kill -0 $helper && echo saved; kill $helper; exit 0" TERM; : > up; wait; fi; while [ ! -e up ]; do sleep 0.05; done; exit 4'
says "^\[rank 0\] saved"

# What torch.distributed.elastic's record leaves in TORCHELASTIC_ERROR_FILE is told.
expect 1 sh -c 'printf "%s" "{\"message\": {\"message\": \"ValueError: \\\"odd\\\" size\", \"extraInfo\": {}}}" > "$TORCHELASTIC_ERROR_FILE"; exit 1'
says 'it said: ValueError: "odd" size'

# Restarts: a new generation with its own number, port and token, until it works or they are used up.
generation='echo "generation $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS $MASTER_PORT $LOCKSTEP_TOKEN"'
expect 0 -n 2 --max-restarts 3 sh -c "$generation"'; [ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ]'
says "^\[rank 1\] generation 2 of 3 "
says "starting all ranks again: restart 2 of 3"
grep -q "generation 3" out.txt && complain "restarted after all was well: $(cat out.txt)"
[ "$(grep -oE 'of 3 [0-9]+ [0-9a-f]+' out.txt | sort -u | wc -l)" = 3 ] || complain "generations share a port and a token: $(cat out.txt)"
[ "$(grep -oE 'of 3 [0-9]+ [0-9a-f]+' out.txt | awk '{ print $4 }' | sort -u | wc -l)" = 3 ] || complain "generations share a token: $(cat out.txt)"
expect 6 --max-restarts 2 --log-dir logs sh -c 'echo $TORCHELASTIC_RESTART_COUNT; exit 6'
[ "$(cat logs/*/attempt_*/0/stdout.log | tr '\n' ' ')" = "0 1 2 " ] || complain "logs of three generations: $(find logs)"

# A rank of ours that dies at any moment leaves behind what it did last.
expect 137 -n 2 sh -c 'if [ $RANK = 1 ]; then (sleep 1; kill -KILL $$) & fi; exec "$0" train --model mlp --steps 100000000 --eval-every -1 --threads 1' "$LOCKSTEP"
says "rank 1 failed first: signal 9"
says "of collectives: it was (in|outside any; it had finished) (all_reduce f32|all_gather|all_gatherv)[a-z_]* .* at .*src/run/[a-z]*\\.c:[0-9]+, its operation [0-9]+"

# Signals: once asks, twice kills. A plain `&` would leave SIGINT ignored, so a shell of its own sends it.
start() { # start ARGS…: the job in the background, $job its pid; returns when both ranks are up
    rm -f up.*
    setsid env --default-signal=INT "$LOCKSTEP" run "$@" > out.txt 2>&1 < /dev/null &
    job=$!
    for _ in $(seq 200); do [ -e up.0 ] && [ -e up.1 ] && return; sleep 0.05; done
    complain "the ranks did not come up: $(cat out.txt)"
}
about="SIGINT"
start -n 2 sh -c 'trap "echo going; exit 0" TERM; : > up.$RANK; while :; do sleep 0.1; done'
kill -INT $job; wait $job; got=$?
[ $got = 130 ] || complain "SIGINT: exit status $got: $(cat out.txt)"
[ "$(grep -c 'going$' out.txt)" = 2 ] || complain "SIGINT: the ranks were not asked: $(cat out.txt)"
says "stopped because of signal 2 \(Interrupt\): ranks 0-1"
about="SIGTERM twice"
start -n 2 --grace 500 sh -c 'trap "" TERM; : > up.$RANK; while :; do sleep 0.1; done'
kill -TERM $job; sleep 0.5; kill -0 $job || complain "one SIGTERM ended a job whose ranks ignore it"
kill -TERM $job; wait $job; got=$?
[ $got = 143 ] || complain "SIGTERM twice: exit status $got: $(cat out.txt)"
says "by SIGKILL: ranks 0-1"
about="SIGUSR1"
start -n 2 sh -c 'trap "echo told; exit 0" USR1; : > up.$RANK; while :; do sleep 0.1; done'
kill -USR1 $job; wait $job; got=$?
[ $got = 0 ] && [ "$(grep -c 'told$' out.txt)" = 2 ] || complain "SIGUSR1 does not reach the ranks: $got $(cat out.txt)"
exit $wrong
