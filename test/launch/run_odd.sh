#!/usr/bin/env bash
# run_odd.sh - unusual environments: closed standard descriptors, SIGCHLD ignored by the parent process, a full disk,
# limits on files and CPU time, temporary files that cannot be removed, very long arguments, a cgroup quota below the
# number of cores.
# ctest: timeout 120
set -u
# Leak detection takes seconds at every exit on some machines; test_launch.c and run_ends.sh cover it.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
wrong=0
complain() { echo "$*" >&2; wrong=1; }
unset OMP_NUM_THREADS LOCKSTEP_THREADS LOCKSTEP_JOB NO_COLOR
# is STATUS WHAT: checks the exit status of the last command
is() { [ "$got" = "$1" ] || complain "$2: exit status $got, not $1: $(cat out.txt err.txt)"; }

# A closed descriptor counts as /dev/null: no other file gets its number.
: > out.txt > err.txt
timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi >> ran.txt; echo hi' >&- 2> err.txt; got=$?; is 0 \
    "standard output closed"
timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi >> ran.txt; echo hi >&2; echo yes' > out.txt 2>&-; got=$?; is 0 \
    "standard error closed"
[ "$(grep -c '^\[rank [01]\] yes$' out.txt)" = 2 ] || complain "standard error closed: $(cat out.txt)"
timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi >> ran.txt; cat' > out.txt 2> err.txt <&-; got=$?; is 0 \
    "standard input closed"
timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi >> ran.txt; cat; echo hi' <&- >&- 2>&-; got=$?; is 0 \
    "all three closed"
timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi >> ran.txt; exit 3' <&- >&- 2>&-; got=$?; is 3 \
    "all three closed and a failure"
# Of the last two, one may be stopped before it writes.
[ "$(wc -l < ran.txt)" -ge 9 ] || complain "ranks did not run: $(cat ran.txt)"

# An ignored SIGCHLD is inherited through exec, and children would leave no status; ranks start with the default.
if command -v perl > /dev/null; then
    ignoring() { timeout -s KILL 20 perl -e '$SIG{CHLD} = "IGNORE"; exec @ARGV' "$@" > out.txt 2> err.txt < /dev/null; }
    ignoring "$LOCKSTEP" run -n 2 --max-restarts 1 sh -c 'exit 5'; got=$?; is 5 "SIGCHLD ignored"
    grep -q 'restarting all ranks' err.txt || complain "SIGCHLD ignored: $(cat err.txt)"
    ignoring "$LOCKSTEP" run -n 2 sed -n s/SigIgn:.//p /proc/self/status; got=$?; is 0 "SIGCHLD ignored, success"
    [ "$(wc -l < out.txt)" = 2 ] || complain "the ranks print nothing: $(cat out.txt)"
    awk '{ if (substr($NF, 12, 1) ~ /[13579bdf]/) exit 1 }' out.txt ||
        complain "the ranks ignore SIGCHLD: $(cat out.txt)" # signal 17: bit 16
fi

# A full disk is not reported as a closed reader.
if [ -w /dev/full ]; then
    timeout -s KILL 20 "$LOCKSTEP" run -n 2 sh -c 'echo hi' > /dev/full 2> err.txt; got=$?; is 1 "a full disk"
    grep -q 'cannot write to standard output: No space left on device' err.txt ||
        complain "a full disk: $(cat err.txt)"
    timeout -s KILL 20 "$LOCKSTEP" run -n 2 --grace 1 sh -c 'while :; do echo y; done' > /dev/full 2> err.txt; got=$?; \
        is 1 "a full disk, much to write"
fi

# With few descriptors a job runs, or reports how many it needs, and leaves no files.
mkdir tmp
tried() { # tried LIMIT WHAT ARGS…
    local limit=$1 what=$2
    shift 2
    (ulimit -n "$limit" && TMPDIR=$work/tmp exec timeout -s KILL 60 "$LOCKSTEP" "$@") > out.txt 2> err.txt < /dev/null
    got=$?
    if [ $got = 0 ]; then enough=$limit; else
        is 1 "$limit descriptors, $what"
        pattern="2 ranks need [0-9]+ file descriptors in the launcher, but only [0-9]+ are free \(limit $limit\): "
        pattern+="raise the limit with ulimit -n [0-9]+\$"
        [ "$(wc -l < err.txt)" = 1 ] && grep -Eq "$pattern" err.txt ||
            complain "$limit descriptors, $what: $(cat err.txt)"
        [ "$(sed 's/.* //' err.txt)" -le 24 ] ||
            complain "$limit descriptors, $what: it asks for too many: $(cat err.txt)"
    fi
    [ -z "$(ls tmp)" ] || complain "$limit descriptors, $what: left behind: $(ls tmp)"
}
least=5
[ -n "${LK_SANITIZE:-}" ] && least=12 # sanitizers open some at start
for limit in $(seq $least 40); do
    enough=0
    tried "$limit" run run -n 2 true
    [ "$limit" -lt 24 ] || [ "$enough" = "$limit" ] || complain "$limit descriptors are not enough: $(cat err.txt)"
    tried "$limit" train train -n 2 --model mlp --data synthetic:16,count=64 --steps 2 --eval-every -1 --threads 1
done

# The file size limit applies to shared memory: the error names it, and all ranks end at once.
(ulimit -f 100 && exec timeout -s KILL 60 "$LOCKSTEP" train -n 2 --model mlp --data synthetic:16,count=64 --steps 2 \
    --eval-every -1 --threads 1) > out.txt 2> err.txt < /dev/null
got=$?; is 1 "a limit on files"
grep -q 'rank 0 failed first: exit code 1' err.txt && grep -q 'raise it with ulimit -f' err.txt &&
    ! grep -Eq 'SIGXFSZ|did not join' err.txt || complain "a limit on files: $(cat err.txt)"

# A limit on CPU time ends a rank by SIGXCPU; where it is the hard limit too, as with ulimit -t, by SIGKILL. Both are
# explained.
cat > spin.sh <<'S'
if [ "$RANK" = 1 ]; then while :; do :; done; fi
exec sleep 60
S
(ulimit -S -t 1 && exec timeout -s KILL 60 "$LOCKSTEP" run -n 2 sh spin.sh) > out.txt 2> err.txt < /dev/null
got=$?; is 152 "a soft limit on CPU time"
grep -q 'rank 1 failed first: signal 24 (SIGXCPU' err.txt &&
    grep -q 'the CPU time limit was reached: .* of 1 s .*ulimit -t' err.txt ||
    complain "a soft limit on CPU time: $(cat err.txt)"
(ulimit -t 1 && exec timeout -s KILL 60 "$LOCKSTEP" run -n 2 sh spin.sh) > out.txt 2> err.txt < /dev/null
got=$?; is 137 "a limit on CPU time"
grep -q 'rank 1 failed first: signal 9 (SIGKILL' err.txt &&
    grep -q 'the CPU time limit was reached: .* of 1 s .*ulimit -t' err.txt &&
    ! grep -q 'a process sent the signal' err.txt ||
    complain "a limit on CPU time: $(cat err.txt)"
for signal in 'XFSZ ulimit -f' 'BUS full' 'ILL a different CPU' 'SYS seccomp'; do
    timeout -s KILL 20 "$LOCKSTEP" run -n 1 sh -c "kill -${signal%% *} \$\$" > out.txt 2> err.txt < /dev/null
    grep -q "signal [0-9]* (SIG${signal%% *}" err.txt && grep -q "${signal#* }" err.txt ||
        complain "SIG${signal%% *}: $(cat err.txt)"
done

# Temporary files that cannot be removed now are named, and the next launch removes them.
cat > stuck.c <<'C'
#include <errno.h>
int unlink(const char *path);
int rmdir(const char *path);
int unlink(const char *path) { (void)path; errno = EIO; return -1; }
int rmdir(const char *path) { (void)path; errno = EIO; return -1; }
C
sed '/unlink/d' stuck.c > kept.c
if [ -z "${LK_SANITIZE:-}" ] && "${CC:-cc}" -shared -fPIC -o stuck.so stuck.c &&
    "${CC:-cc}" -shared -fPIC -o kept.so kept.c; then
    mkdir stuck
    for cannot in stuck kept; do
        TMPDIR=$work/stuck LD_PRELOAD="$work/$cannot.so" timeout -s KILL 20 "$LOCKSTEP" run -n 2 true > out.txt 2> \
            err.txt < /dev/null; got=$?; is 0 "$cannot"
        grep -q "cannot remove the temporary files in $work/stuck/lockstep-.*Input/output error" err.txt ||
            complain "$cannot: $(cat err.txt)"
        [ -n "$(ls stuck)" ] || complain "$cannot: nothing stayed: the test checks nothing"
        touch -d '5 minutes ago' stuck/lockstep-*
        TMPDIR=$work/stuck timeout -s KILL 20 "$LOCKSTEP" run -n 2 true > out.txt 2> err.txt < /dev/null; got=$?; is 0 \
            "after $cannot"
        [ -z "$(ls stuck)" ] || complain "$cannot: left for ever: $(ls -R stuck)"
        rm -rf stuck/*
    done
else
    echo "skip: no preloaded library"
fi

# Long arguments are not truncated.
long=$(head -c 20000 /dev/zero | tr '\0' x)
"$LOCKSTEP" run --role "$long" --master-addr "$long" --master-port 1 --rdzv-id "$long" sh -c \
    'echo ${#ROLE_NAME} ${#MASTER_ADDR} ${#TORCHELASTIC_RUN_ID}' > out.txt 2> err.txt; got=$?; is 0 "long arguments"
grep -q '^\[rank 0\] 20000 20000 20000$' out.txt || complain "long arguments: $(head -c 300 out.txt)"
"$LOCKSTEP" run --log-dir logs --rdzv-id "$long" true > out.txt 2> err.txt; got=$?; is 2 "an id too long for a path"
"$LOCKSTEP" run --hosts one --ssh "$long" true > out.txt 2> err.txt; got=$?; is 2 "a command too long for ssh"

# A cgroup's CPU quota limits the number of ranks and threads. The files are in place of the hierarchy that has this
# process's quota; with its own group hidden, the one at the mount counts.
read -r version mount < \
    <(awk '/ - cgroup .*[ ,]cpu(,|$)/ { first = $5 } / - cgroup2 / { second = $5 }
        END { print first ? "1 " first : "2 " second }' /proc/self/mountinfo)
if [ "$version" = 1 ]; then
    files='echo 100000 > cpu.cfs_quota_us && echo 100000 > cpu.cfs_period_us'
else
    files='echo "100000 100000" > cpu.max'
fi
quota="mount -t tmpfs none '$mount' && cd '$mount' && $files && cd /"
if unshare -rm sh -c "$quota" 2> /dev/null; then
    limited=$quota' && "$0" run -n cpu sh -c '"'echo world \$WORLD_SIZE'"
    limited+=' && "$0" run sh -c '"'echo threads \$LOCKSTEP_THREADS \$OMP_NUM_THREADS'"
    unshare -rm sh -c "$limited" "$LOCKSTEP" > out.txt 2> err.txt; got=$?; is 0 "a quota"
    grep -q 'world 1$' out.txt && grep -q 'threads 1 1$' out.txt ||
        complain "a quota of one core: $(cat out.txt err.txt)"
else
    echo "skip: no namespaces for a cgroup quota"
fi
exit $wrong
