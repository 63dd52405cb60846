#!/usr/bin/env bash
# run_odd.sh - odd surroundings: standard descriptors that are closed, SIGCHLD ignored by whoever starts the launcher, a full disk,
# words that are very long, a cgroup that grants less time than there are cores.
# ctest: timeout 120
set -u
# Sanitizers look for leaks at every exit, which takes seconds on some machines; test_launch.c and run_ends.sh have that covered.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
wrong=0
complain() { echo "$*" >&2; wrong=1; }
unset OMP_NUM_THREADS LOCKSTEP_THREADS LOCKSTEP_JOB NO_COLOR
# is STATUS WHAT: the last command ended so
is() { [ "$got" = "$1" ] || complain "$2: exit status $got, not $1: $(cat out.txt err.txt)"; }

# A closed descriptor is as good as /dev/null: no file of ours takes its place.
: > out.txt > err.txt
timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi >> said; echo hi' >&- 2> err.txt; got=$?; is 0 "standard output closed"
timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi >> said; echo hi >&2; echo yes' > out.txt 2>&-; got=$?; is 0 "standard error closed"
[ "$(grep -c '^\[rank [01]\] yes$' out.txt)" = 2 ] || complain "standard error closed: $(cat out.txt)"
timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi >> said; cat' > out.txt 2> err.txt <&-; got=$?; is 0 "standard input closed"
timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi >> said; cat; echo hi' <&- >&- 2>&-; got=$?; is 0 "all three closed"
timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi >> said; exit 3' <&- >&- 2>&-; got=$?; is 3 "all three closed and a failure"
[ "$(wc -l < said)" -ge 9 ] || complain "ranks did not run: $(cat said)" # of the last two, one may be stopped before it speaks

# Ignored SIGCHLD passes through exec, and the dead would leave no status; the ranks begin with the default.
if command -v perl > /dev/null; then
    ignoring() { timeout -s KILL 20 perl -e '$SIG{CHLD} = "IGNORE"; exec @ARGV' "$@" > out.txt 2> err.txt < /dev/null; }
    ignoring "$LOCKSTEP" run -n 2 --max-restarts 1 sh -c 'exit 5'; got=$?; is 5 "SIGCHLD ignored"
    grep -q 'starting all ranks again' err.txt || complain "SIGCHLD ignored: $(cat err.txt)"
    ignoring "$LOCKSTEP" run -n 2 sed -n s/SigIgn:.//p /proc/self/status; got=$?; is 0 "SIGCHLD ignored, all well"
    [ "$(wc -l < out.txt)" = 2 ] || complain "the ranks say nothing: $(cat out.txt)"
    awk '{ if (substr($NF, 12, 1) ~ /[13579bdf]/) exit 1 }' out.txt || complain "the ranks ignore SIGCHLD: $(cat out.txt)" # signal 17: bit 16
fi

# A full disk is no reader that went away.
if [ -w /dev/full ]; then
    timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi' > /dev/full 2> err.txt; got=$?; is 1 "a full disk"
    grep -q 'standard output cannot be written: No space left on device' err.txt || complain "a full disk: $(cat err.txt)"
    timeout -s KILL 20 "$LOCKSTEP" run -n 2 --grace 1 sh -c 'while :; do echo y; done' > /dev/full 2> err.txt; got=$?; is 1 "a full disk, much to write"
fi

# With few descriptors a job runs, or says how many it needs, and leaves nothing behind.
mkdir tmp
tried() { # tried LIMIT WHAT ARGS…
    local limit=$1 what=$2
    shift 2
    (ulimit -n "$limit" && TMPDIR=$work/tmp exec timeout -s KILL 60 "$LOCKSTEP" "$@") > out.txt 2> err.txt < /dev/null
    got=$?
    if [ $got = 0 ]; then enough=$limit; else
        is 1 "$limit descriptors, $what"
        [ "$(wc -l < err.txt)" = 1 ] && grep -Eq "2 ranks need [0-9]+ file descriptors in the launcher, and [0-9]+ are free \(limit $limit\): raise the limit with ulimit -n [0-9]+\$" err.txt ||
            complain "$limit descriptors, $what: $(cat err.txt)"
        [ "$(sed 's/.* //' err.txt)" -le 24 ] || complain "$limit descriptors, $what: far more are asked for: $(cat err.txt)"
    fi
    [ -z "$(ls tmp)" ] || complain "$limit descriptors, $what: left behind: $(ls tmp)"
}
least=5
[ -n "${LK_SANITIZE:-}" ] && least=12 # whose libraries take some as they start
for limit in $(seq $least 40); do
    enough=0
    tried "$limit" run run -n 2 true
    [ "$limit" -lt 24 ] || [ "$enough" = "$limit" ] || complain "$limit descriptors are not enough: $(cat err.txt)"
    tried "$limit" train train -n 2 --model mlp --data synthetic:16,count=64 --steps 2 --eval-every -1 --threads 1
done

# The limit on files counts for the memory that ranks share: it is said, and all ranks are told at once.
(ulimit -f 100 && exec timeout -s KILL 60 "$LOCKSTEP" train -n 2 --model mlp --data synthetic:16,count=64 --steps 2 --eval-every -1 --threads 1) > out.txt 2> err.txt < /dev/null
got=$?; is 1 "a limit on files"
grep -q 'rank 0 failed first: exit code 1' err.txt && grep -q 'raise it with ulimit -f' err.txt && ! grep -Eq 'SIGXFSZ|never came' err.txt || complain "a limit on files: $(cat err.txt)"

# Long words arrive whole.
long=$(head -c 20000 /dev/zero | tr '\0' x)
"$LOCKSTEP" run --role "$long" --master-addr "$long" --master-port 1 --rdzv-id "$long" sh -c 'echo ${#ROLE_NAME} ${#MASTER_ADDR} ${#TORCHELASTIC_RUN_ID}' > out.txt 2> err.txt; got=$?; is 0 "long words"
grep -q '^\[rank 0\] 20000 20000 20000$' out.txt || complain "long words: $(head -c 300 out.txt)"
"$LOCKSTEP" run --log-dir logs --rdzv-id "$long" true > out.txt 2> err.txt; got=$?; is 2 "an id too long for a path"
"$LOCKSTEP" run --hosts one --ssh "$long" true > out.txt 2> err.txt; got=$?; is 2 "a command too long for ssh"

# A cgroup's quota counts as cores do.
quota='mount -t tmpfs none /sys/fs/cgroup && echo "100000 100000" > /sys/fs/cgroup/cpu.max'
if unshare -rm sh -c "$quota" 2> /dev/null; then
    unshare -rm sh -c "$quota"' && "$0" run -n cpu sh -c '"'echo world \$WORLD_SIZE'"' && "$0" run sh -c '"'echo threads \$LOCKSTEP_THREADS \$OMP_NUM_THREADS'"'' "$LOCKSTEP" > out.txt 2> err.txt; got=$?; is 0 "a quota"
    grep -q 'world 1$' out.txt && grep -q 'threads 1 1$' out.txt || complain "a quota of one core: $(cat out.txt err.txt)"
else
    echo "a quota: not tried, no namespaces here"
fi
exit $wrong
