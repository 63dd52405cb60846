#!/usr/bin/env bash
# run_ends.sh - how jobs end: exit statuses, the rank that failed first and the cause, how the others were stopped;
# restarts; signals.
# ctest: timeout 180
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
wrong=0
complain() { echo "$*" >&2; wrong=1; }
unset NO_COLOR LOCKSTEP_JOB
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"

# expect STATUS ARGS…: lockstep run ARGS ends with STATUS; its output is in out.txt, which `prints` searches.
expect() {
    local status=$1 got
    shift
    about="run $*"
    "$LOCKSTEP" run "$@" > out.txt 2>&1 < /dev/null
    got=$?
    [ "$got" = "$status" ] || complain "$about: exit status $got, not $status: $(cat out.txt)"
}
prints() { grep -Eq -- "$1" out.txt || complain "$about: does not print '$1': $(cat out.txt)"; }

expect 0 -n 3 sh -c 'exit 0'
[ "$(wc -l < out.txt)" = 1 ] || complain "a successful job prints more than its first line: $(cat out.txt)"
expect 3 -n 2 --max-restarts 1 --log-dir leaks sh -c 'echo some text; exit 3'
# Leak detection takes seconds at every exit on some machines: the two runs above cover it.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0

expect 7 -n 3 sh -c 'if [ $RANK = 1 ]; then echo "last output"; echo "of rank 1" >&2; exit 7; fi; exec sleep 600'
prints "rank 1 failed first: exit code 7, at [0-9:]{8} after [0-9.]+ s, on $(uname -n), pid [0-9]+"
prints "peak memory [0-9.]+ MiB"
prints "^\[rank 1\] last output"
prints "^\[rank 1\] of rank 1"
prints "stopped because of rank 1: ranks 0, 2"

expect 139 -n 2 sh -c '[ $RANK = 0 ] && kill -SEGV $$; exec sleep 600'
prints "rank 0 failed first: signal 11 \(SIGSEGV, Segmentation fault\)"
expect 137 -n 2 sh -c '[ $RANK = 0 ] && kill -KILL $$; exec sleep 600'
prints "signal 9 \(SIGKILL, Killed\)"
[ ! -r /proc/vmstat ] || ! grep -q oom_kill /proc/vmstat ||
    prints "the kernel counted no out-of-memory kill: a process sent the signal|out-of-memory kill: "
expect 127 sh -c 'no-such-command-at-all'
prints "exit code 127 \(command not found\)"
# The launcher has noticed the end of rank 0: nothing is left of its process, not even a zombie.
expect 9 -n 2 sh -c 'if [ $RANK = 0 ]; then echo $$ > first; exit 0; fi
until [ -s first ] && [ ! -e "/proc/$(cat first)" ]; do sleep 0.05; done; exit 9'
prints "finished earlier: rank 0"
expect 5 -n 2 --grace 0.3 sh -c \
    'if [ $RANK = 0 ]; then trap "" TERM; echo ready > ready; while :; do sleep 600; done; fi
while [ ! -e ready ]; do sleep 0.05; done; exit 5'
prints "stopped because of rank 1, by SIGKILL after the grace period: rank 0"
# The last lines of the rank that failed are quoted, unless they are the last that were printed.
rm -f more
expect 3 -n 2 sh -c 'if [ $RANK = 0 ]; then
    for i in $(seq 1 500); do echo "line $i"; done; while [ ! -e more ]; do sleep 0.05; done; exit 3
fi
until grep -q "line 500" out.txt; do sleep 0.05; done; seq 20
until grep -q "^\[rank 1\] 20\$" out.txt; do sleep 0.05; done; : > more; exec sleep 600'
prints "^    \| line 500\$"
[ "$(grep -c '^    | ' out.txt)" = 10 ] || complain "not the last 10 lines: $(tail -20 out.txt)"
expect 3 sh -c 'for i in $(seq 1 500); do echo "line $i"; done; exit 3'
[ "$(grep -c 'line 500' out.txt)" = 1 ] || complain "printed twice: $(tail -20 out.txt)"

# A rank may save before it stops, while its child processes run: only the rank itself gets SIGTERM.
expect 4 -n 2 sh -c 'if [ $RANK = 0 ]; then
    sleep 601 & helper=$!; trap "kill -0 $helper && echo saved; kill $helper; exit 0" TERM; : > up; wait
fi
while [ ! -e up ]; do sleep 0.05; done; exit 4'
prints "^\[rank 0\] saved"

# The error that torch.distributed.elastic's record writes to TORCHELASTIC_ERROR_FILE is printed.
expect 1 sh -c \
    'printf "%s" "{\"message\": {\"message\": \"ValueError: \\\"odd\\\" size\", \"extraInfo\": {}}}" \
    > "$TORCHELASTIC_ERROR_FILE"; exit 1'
prints 'error message: ValueError: "odd" size'

# Restarts: each generation has its own number, port and token, until one succeeds or none are left.
generation='echo "generation $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS $MASTER_PORT $LOCKSTEP_TOKEN"'
expect 0 -n 2 --max-restarts 3 sh -c "$generation"'; [ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ]'
prints "^\[rank 1\] generation 2 of 3 "
prints "restarting all ranks: restart 2 of 3"
grep -q "generation 3" out.txt && complain "restarted after a success: $(cat out.txt)"
[ "$(grep -oE 'of 3 [0-9]+ [0-9a-f]+' out.txt | sort -u | wc -l)" = 3 ] ||
    complain "generations share a port and a token: $(cat out.txt)"
[ "$(grep -oE 'of 3 [0-9]+ [0-9a-f]+' out.txt | awk '{ print $4 }' | sort -u | wc -l)" = 3 ] ||
    complain "generations share a token: $(cat out.txt)"
expect 6 --max-restarts 2 --log-dir logs sh -c 'echo $TORCHELASTIC_RESTART_COUNT; exit 6'
[ "$(cat logs/*/attempt_*/0/stdout.log | tr '\n' ' ')" = "0 1 2 " ] ||
    complain "logs of three generations: $(find logs)"

# The last collective of a killed rank of ours is reported.
expect 137 -n 2 sh -c 'if [ $RANK = 1 ]; then (until [ -s steps ]; do sleep 0.05; done; kill -KILL $$) & fi
exec "$0" train --model mlp --steps 100000000 --eval-every -1 --threads 1 --log steps' "$LOCKSTEP"
prints "rank 1 failed first: signal 9"
operation="(all_reduce f32|all_gather|all_gatherv|barrier)[a-z_]*( .*)?"
prints "collectives: it was (in|not in any; it had finished) (#[0-9]+ )?$operation at .*src/run/[a-z_]*\\.c:[0-9]+$"
# Its number is that of the table that the other rank prints. A rank that dies as it enters an operation has no number
# for it yet.
number=$(grep -oE 'collectives: it was (in|not in any; it had finished) #[0-9]+' out.txt | grep -oE '#[0-9]+' || true)
[ -z "$number" ] || grep -E "rank 1 .* (it was in|last finished) $number .*<- missing" out.txt > /dev/null ||
    complain "the table has other numbers than the launcher's lines: $(cat out.txt)"

# Signals: the first stops, the second kills. A plain `&` would leave SIGINT ignored.
start() { # start ARGS…: the job in the background, $job its pid; returns when both ranks have started
    rm -f up.*
    setsid env --default-signal=INT "$LOCKSTEP" run "$@" > out.txt 2>&1 < /dev/null &
    job=$!
    wait_until 30 test -e up.0 && wait_until 30 test -e up.1 || complain "the ranks did not start: $(cat out.txt)"
}
about="SIGINT"
start -n 2 sh -c 'trap "echo stopping; exit 0" TERM; : > up.$RANK; while :; do sleep 0.1; done'
kill -INT $job; wait $job; got=$?
[ $got = 130 ] || complain "SIGINT: exit status $got: $(cat out.txt)"
[ "$(grep -c 'stopping$' out.txt)" = 2 ] || complain "SIGINT: the ranks got no SIGTERM: $(cat out.txt)"
prints "stopped because of signal 2 \(Interrupt\): ranks 0-1"
about="SIGTERM twice"
start -n 2 --grace 500 sh -c 'trap "" TERM; : > up.$RANK; while :; do sleep 0.1; done'
# The launcher takes a signal within 0.4 s of the first one for the same.
kill -TERM $job; wait_for_line 20 "stopping 2 ranks" out.txt; pause_randomly 500 900; kill -0 $job ||
    complain "one SIGTERM ended a job whose ranks ignore it"
kill -TERM $job; wait $job; got=$?
[ $got = 143 ] || complain "SIGTERM twice: exit status $got: $(cat out.txt)"
prints "by SIGKILL: ranks 0-1"
about="SIGUSR1"
start -n 2 sh -c 'trap "echo got USR1; exit 0" USR1; : > up.$RANK; while :; do sleep 0.1; done'
kill -USR1 $job; wait $job; got=$?
[ $got = 0 ] && [ "$(grep -c 'got USR1$' out.txt)" = 2 ] ||
    complain "SIGUSR1 does not reach the ranks: $got $(cat out.txt)"
about="SIGUSR1, and ranks that end with its exit code" # one at once, the other when it has saved
start -n 2 --max-restarts 1 sh -c 'trap "[ \$RANK = 1 ] || { sleep 0.5; echo saved; }; exit 138" USR1
: > up.$RANK; for _ in $(seq 50); do sleep 0.1; done'
kill -USR1 $job; wait $job; got=$?
[ $got = 138 ] && [ "$(grep -c 'saved$' out.txt)" = 1 ] || complain "SIGUSR1 with exit code 138: $got $(cat out.txt)"
prints "stopped because of signal 10 \(User defined signal 1\): ranks 0-1"
! grep -Eq 'failed|again' out.txt || complain "SIGUSR1 with exit code 138: $(cat out.txt)"

# A rank that does not end at SIGKILL is named, with the reason: here a debugger that does not wait for it.
cat > tracer.c <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <unistd.h>
int main(int count, char **arguments)
{
    if (count != 2 || ptrace(PTRACE_SEIZE, atoi(arguments[1]), NULL, NULL) != 0) return 1;
    puts("holds it");
    fflush(stdout);
    pause();
}
C
about="a rank that a debugger holds"
if "${CC:-cc}" -o tracer tracer.c; then
    start -n 2 --grace 0.1 sh -c 'echo $$ > pid.$RANK; : > up.$RANK; while :; do sleep 0.1; done'
    ./tracer "$(cat pid.1)" > held.txt & tracer=$!
    is_decided() { [ -s held.txt ] || has_ended $tracer; }
    wait_until 20 is_decided
    kill -TERM $job
    if [ -s held.txt ]; then
        line="rank 1 \(pid $(cat pid.1)\) has not ended .* after SIGKILL: .*debugger \(pid $tracer\)"
        wait_for_line 30 "$line" out.txt || complain "$about: $(cat out.txt)"
        ! grep -q 'rank 0 (pid' out.txt || complain "$about: names another one: $(cat out.txt)"
        is_running $job || complain "$about: the launcher has ended before the rank"
    else
        echo "skip: ptrace is not permitted"
    fi
    kill -KILL $tracer 2> /dev/null
    wait $tracer 2> /dev/null
    wait $job; got=$?
    [ $got = 143 ] || complain "$about: exit status $got: $(cat out.txt)"
else
    echo "skip: no C compiler"
fi
exit $wrong
