#!/usr/bin/env bash
# run_debug.sh - --debug-rank gives one rank the terminal, with or without a debugger, and takes it back afterwards.
# ctest: timeout 120
set -u
# shellcheck source=test/terminal.bash
. "$SOURCE_DIR/test/terminal.bash"
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"
has_terminal || { echo "skipped: $left_out"; exit 77; }
# Leak detection takes seconds at every exit on some machines; test_launch.c and run_ends.sh cover it.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
wrong=0
complain() { echo "$*" >&2; wrong=1; }
unset LOCKSTEP_JOB
export NO_COLOR=1

cat > ask.sh <<'S'
if [ "$RANK" = 1 ]; then
    [ -t 0 ] && [ -t 1 ] && [ "$(ps -o tpgid= -p $$ | tr -d ' ')" = "$(ps -o pgid= -p $$ | tr -d ' ')" ] &&
        echo "this rank has the terminal"
    read -r line
    echo "read: $line"
else
    [ -t 0 ] || [ -t 1 ] || echo "no terminal, deadlines off: $LOCKSTEP_NO_DEADLINES"
fi
S
: > out.txt
session="'$LOCKSTEP' run -n 2 --debug-rank 1 --debugger none sh ask.sh; ps -o tpgid=,pgid= -p \$\$; echo status \$?"
{
    wait_for_line 60 '^this rank has the terminal' out.txt
    echo "typed text"
    wait_for_line 60 '^status' out.txt
} | on_terminal "$session" > out.txt
grep -q '^this rank has the terminal' out.txt || complain "rank 1 does not have the terminal: $(cat -v out.txt)"
grep -q '^read: typed text' out.txt || complain "rank 1 does not read the keyboard: $(cat -v out.txt)"
grep -q '^\[rank 0\] no terminal, deadlines off: 1' out.txt || complain "rank 0: $(cat -v out.txt)"
if command -v gdb > /dev/null; then
    on_terminal "'$LOCKSTEP' run --debug-rank 0 --debugger 'gdb -q -nx -batch -ex run --args' sh -c 'exit 3'" < \
        /dev/null > out.txt
    grep -q 'exited with code 03' out.txt || grep -q 'ptrace' out.txt || complain "gdb: $(cat -v out.txt)"
fi
# No argument is dropped, and nothing of a long debugger's command line.
cat > many.sh <<'S'
exec "$LOCKSTEP" run --debug-rank 0 --debugger "env LONG=$(head -c 3000 /dev/zero | tr '\0' x)" \
    sh -c 'echo "arguments: $#, the last one ${2000}, long: ${#LONG}"' sh $(seq 2000)
S
on_terminal "bash many.sh" < /dev/null > out.txt
grep -q '^arguments: 2000, the last one 2000, long: 3000' out.txt || complain "many arguments: $(cat -v out.txt)"
"$LOCKSTEP" run -n 2 --debug-rank 1 true < /dev/null > out.txt 2>&1
[ $? = 2 ] && grep -q 'standard input and output are not a terminal' out.txt ||
    complain "without a terminal: $(cat out.txt)"
on_terminal "'$LOCKSTEP' run -n 2 --debug-rank 2 true; echo status \$?" < /dev/null > out.txt
grep -q 'this host has ranks 0 to 1' out.txt && grep -q 'status 2' out.txt ||
    complain "a rank that does not exist: $(cat out.txt)"
exit $wrong
