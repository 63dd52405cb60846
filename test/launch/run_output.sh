#!/usr/bin/env bash
# run_output.sh - the output of ranks is relayed completely: no split lines, no lost bytes, also with a slow reader,
# long lines, binary data and no newline at the end; files by --log-dir, --tee and --redirects; colours and progress
# bars only on a terminal.
# ctest: timeout 180
set -u
# Leak detection takes seconds at every exit on some machines; test_launch.c and run_ends.sh cover it.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
wrong=0
complain() { echo "$*" >&2; wrong=1; }
# shellcheck source=test/terminal.bash
. "$SOURCE_DIR/test/terminal.bash"
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"
unset NO_COLOR LOCKSTEP_JOB

# Four ranks print as fast as they can, with writes that end anywhere in a line, on both streams.
cat > noise.sh <<'S'
awk -v rank="$RANK" 'BEGIN { for (i = 0; i < 3000; i++) {
    printf "%d:%d:", rank, i; for (j = 0; j < i % 97; j++) printf "x"; if (i % 7 == 0) fflush(); print "" } }' &
awk -v rank="$RANK" 'BEGIN { for (i = 0; i < 3000; i++) {
    printf "E%d:%d", rank, i > "/dev/stderr"; print ":end" > "/dev/stderr" } }' &
wait
S
"$LOCKSTEP" run -n 4 sh noise.sh > all.txt 2>&1 || complain "four ranks that print: exit status $?"
for rank in 0 1 2 3; do
    awk -v rank=$rank 'BEGIN { for (i = 0; i < 3000; i++) {
        s = "[rank " rank "] " rank ":" i ":"; for (j = 0; j < i % 97; j++) s = s "x"; print s } }' > want.txt
    grep "^\[rank $rank\] $rank:" all.txt | cmp - want.txt ||
        complain "rank $rank: lines are split, lost or out of order"
    [ "$(grep -cE "^\[rank $rank\] E$rank:[0-9]+:end\$" all.txt)" = 3000 ] ||
        complain "rank $rank: standard error is split or lost"
done
[ "$(grep -cv '^lockstep run: ' all.txt)" = 24000 ] ||
    complain "lines without a rank: $(grep -vE '^(\[rank|lockstep)' all.txt | head -3)"

# A slow reader: the ranks wait, nothing is dropped.
"$LOCKSTEP" run -n 2 --local-ranks-filter 1 sh -c 'seq 1 400000' 2> /dev/null | { sleep 1; cat; } > slow.txt
seq 1 400000 | sed 's/^/[rank 1] /' | cmp - slow.txt || complain "a slow reader loses lines"

# A reader that closes the pipe ends the job.
timeout 20 "$LOCKSTEP" run --grace 1 sh -c 'while :; do echo y; done' 2> err.txt | head -1 > /dev/null
[ "${PIPESTATUS[0]}" = 141 ] && grep -q 'the reader of standard output closed it' err.txt ||
    complain "a reader that closes the pipe: $(cat err.txt)"

# A long line stays one line; an extremely long one and binary data keep all bytes; the last line needs no newline.
"$LOCKSTEP" run sh -c 'head -c 900000 /dev/zero | tr "\0" a; echo; printf "the end"' 2> /dev/null > long.txt
{ printf '[rank 0] '; head -c 900000 /dev/zero | tr '\0' a; printf '\n[rank 0] the end\n'; } | cmp - long.txt ||
    complain "a line of 900000 bytes"
"$LOCKSTEP" run sh -c 'head -c 5000000 /dev/zero | tr "\0" b' 2> /dev/null | tr -dc b | wc -c | grep -qx 5000000 ||
    complain "a line of 5000000 bytes lost some"
awk 'BEGIN { for (i = 0; i < 4096; i++) printf "%c%c%c", (i * 37) % 256, (i * 101 + i / 256) % 256, (i * 11) % 256 }' \
    > binary
"$LOCKSTEP" run --log-dir logs --rdzv-id bin cat "$work/binary" 2> /dev/null > shown
sed 's/^\[rank 0\] //' shown > plain
[ "$(tail -c1 binary | od -An -c)" = "$(printf '\n' | od -An -c)" ] || printf '\n' >> binary.nl
cat binary binary.nl 2> /dev/null | cmp - plain || complain "binary data was changed"
cmp binary logs/bin_*/attempt_0/0/stdout.log || complain "the log file differs from the output"
"$LOCKSTEP" run -n 2 --log-dir ours "$LOCKSTEP" train --model mlp --steps 1 --eval-every -1 --threads 1 > out.txt 2>&1 \
    || complain "training: $(cat out.txt)"
[ -z "$(find ours -type f ! -name '*.log')" ] || complain "other files than logs are kept: $(find ours -type f)"

# Files.
both='echo out $RANK; echo err $RANK >&2'
check_files() { # check_files NAME LINES-ON-SCREEN FILE=TEXT…
    local name=$1 screen=$2 pair
    shift 2
    [ "$(grep -c '^\[rank' "$name.txt")" = "$screen" ] ||
        complain "$name: not $screen lines on the screen: $(cat "$name.txt")"
    for pair; do [ "$(cat "$name"/*/attempt_0/"${pair%%=*}" 2> /dev/null)" = "${pair#*=}" ] ||
        complain "$name: ${pair%%=*} is not '${pair#*=}': $(find "$name" -type f)"; done
}
"$LOCKSTEP" run -n 2 --log-dir one/deep sh -c "$both" > one.txt 2>&1
mv one/deep/* one/; check_files one 4 "0/stdout.log=out 0" "1/stderr.log=err 1"
"$LOCKSTEP" run -n 2 --log-dir two --redirects 3 sh -c "$both" > two.txt 2>&1; check_files two 0 "0/stdout.log=out 0" \
    "1/stderr.log=err 1"
"$LOCKSTEP" run -n 2 --log-dir three --tee 0:1 -r 1:2 sh -c "$both" > three.txt 2>&1; check_files three 3 \
    "0/stdout.log=out 0" "1/stderr.log=err 1"
[ ! -e "$(echo three/*/attempt_0/1/stdout.log)" ] || complain "a file that was not requested"
"$LOCKSTEP" run -n 2 --log-dir four --tee 3 --local_ranks_filter 1 sh -c "$both" > four.txt 2>&1; check_files four 2 \
    "0/stdout.log=out 0"
grep -q "logs in $work/four/" four.txt || complain "does not print where the logs are: $(cat four.txt)"
: > file
"$LOCKSTEP" run --log-dir file/x true > five.txt 2>&1; [ $? = 2 ] && grep -q "file: cannot create" five.txt ||
    complain "--log-dir below a file: $(cat five.txt)"

# On a terminal: colours unless NO_COLOR is set, and progress bars are updated in place.
if has_terminal; then
    run="'$LOCKSTEP' run -n 2 --monitor-interval 0.05 sh bar.sh"
    cat > bar.sh <<'S'
[ "$RANK" = 1 ] && exit 0
for i in 1 2; do printf '\rat %s0%%' $i; until [ -e seen$i ]; do sleep 0.05; done; done
echo; echo hello
S
    on_terminal "$run" < /dev/null > tty.txt & # the bar continues once the screen has shown it
    for i in 1 2; do
        wait_for_line 60 "at ${i}0%" tty.txt
        touch seen$i
    done
    wait $!
    grep -q $'\033\[[0-9]*m\[rank 0\]\033\[0m hello' tty.txt || complain "no colours on a terminal: $(cat -v tty.txt)"
    grep -q $'\r\033\[K[^\r]*at 20%' tty.txt || complain "no updated progress bar: $(cat -v tty.txt)"
    NO_COLOR=1 on_terminal "$run" < /dev/null > tty.txt
    grep -q '^\[rank 0\] hello' tty.txt || complain "NO_COLOR: $(cat -v tty.txt)"
    "$LOCKSTEP" run -n 2 sh bar.sh > pipe.txt 2>&1
    grep -q $'\033' pipe.txt && complain "escape sequences in a pipe: $(cat -v pipe.txt)"
fi
finish $wrong
