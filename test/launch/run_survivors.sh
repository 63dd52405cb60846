#!/usr/bin/env bash
# run_survivors.sh - no process survives a job, also if a rank dies, ignores SIGTERM or starts daemons, or if the
# launcher or its orphan reaper is killed with SIGKILL.
# ctest: timeout 180
set -u
# Leak detection takes seconds at every exit on some machines; test_launch.c and run_ends.sh cover it.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
work=$(mktemp -d)
tag=lockstep-test-$$
finish() { for pid in $(members); do kill -KILL "$pid"; done 2> /dev/null; rm -rf "$work"; }
trap finish EXIT
cd "$work" || exit 1
wrong=0
complain() { echo "$*" >&2; wrong=1; }
unset LOCKSTEP_JOB
mkdir tmp
export TMPDIR=$work/tmp
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"

# Running processes with this test's tag, except this shell and its own commands. Independent of the launcher's job id:
# every process of the job also runs a copy of sleep that is named after the test.
cp "$(command -v sleep)" "./$tag"
members() {
    pgrep -f "$tag" | while read -r pid; do
        [ "$pid" = $$ ] || ! grep -qsv '^$' "/proc/$pid/cmdline" ||
            [ "$(cut -d' ' -f3 "/proc/$pid/stat" 2> /dev/null)" = Z ] || echo "$pid"
    done
}
has_members() { [ "$(members | wc -l)" -ge "$1" ]; }
has_at_most() { [ "$(members | wc -l)" -le "$1" ]; }
alone() { # alone WHAT: within 10 s
    wait_until 10 has_at_most 0 && return
    complain "$1: still there: $(members | xargs ps -o pid,ppid,args -p)"
    for pid in $(members); do kill -KILL "$pid"; done
}
# A rank that has a daemon in its own session, an orphaned one and a child process in its group, and that ignores
# SIGTERM.
cat > rank.sh <<S
trap '' TERM
setsid ./$tag 6001 &
(setsid ./$tag 6002 > /dev/null 2>&1 &)
./$tag 6003 &
: > up.\$RANK
while :; do ./$tag 6004; done
S
start() {
    rm -f up.*
    "$LOCKSTEP" run -n 2 "$@" > out.txt 2>&1 < /dev/null &
    job=$!
    wait_until 30 test -e up.0 && wait_until 30 test -e up.1 && wait_until 30 has_members 8 ||
        complain "the ranks did not start: $(cat out.txt)"
}
reaper_of() { ps -o pid=,comm= --ppid "$1" | awk '$2 == "lk-reaper" { print $1 }'; }

start sh rank.sh
[ -n "$(reaper_of $job)" ] || complain "there is no orphan reaper"
kill -KILL $job
wait $job 2> /dev/null
alone "after kill -9 of the launcher"

start --grace 0.2 sh rank.sh
kill -KILL "$(ps -o pid=,comm= --ppid $job | awk '$2 == "sh" { print $1; exit }')"
wait $job
[ $? = 137 ] || complain "kill -9 of a rank: $(cat out.txt)"
[ -z "$(members)" ] || complain \
    "after kill -9 of a rank: the launcher has ended, but not $(members | xargs ps -o pid,args -p)"
alone "after kill -9 of a rank"

start --grace 0.2 sh rank.sh
kill -TERM $job
wait $job
[ $? = 143 ] || complain "SIGTERM: $(cat out.txt)"
[ -z "$(members)" ] || complain "after SIGTERM: the launcher has ended, but not $(members | xargs ps -o pid,args -p)"
alone "after SIGTERM"

# A killed reaper is replaced, and the new one knows the ranks.
start sh rank.sh
old=$(reaper_of $job)
kill -KILL "$old"
is_replaced() { new=$(reaper_of $job); [ -n "$new" ] && [ "$new" != "$old" ]; }
wait_until 20 is_replaced || complain "the reaper was not replaced"
kill -KILL $job
wait $job 2> /dev/null
alone "after kill -9 of the reaper, then of the launcher"

# A stopped reaper is continued and not replaced.
start sh rank.sh
old=$(reaper_of $job)
is_stopped() { [ "$(cut -d' ' -f3 "/proc/$1/stat")" = T ]; }
switches() { awk '$1 == "voluntary_ctxt_switches:" { print $2 }' "/proc/$old/status"; }
before=$(switches)
is_continued() { [ "$(switches)" -gt "$before" ] && ! is_stopped "$old"; } # it was stopped meanwhile: that is a switch
kill -STOP "$old"
wait_until 20 is_continued && [ "$(reaper_of $job)" = "$old" ] || complain "the stopped reaper was not continued"
kill -KILL $job
wait $job 2> /dev/null
alone "after kill -STOP of the reaper, then kill -9 of the launcher"

# It is also continued or replaced once the ranks have ended: while a daemon is waited for, and while the reader is.
cat > slow.sh <<S
setsid sh -c 'trap ": > asked" TERM; : > ready; until [ -e go ]; do ./$tag 0.05; done' &
until [ -e ready ]; do ./$tag 0.05; done
S
stop_reaper() { # stop_reaper WHEN: the launcher still ends
    old=$(reaper_of $job)
    before=$(switches)
    kill -STOP "${old:?}"
    is_handled() { is_stopped "$old" || is_continued; }
    wait_until 20 is_handled || complain "there is no orphan reaper while $1"
    : > go
    wait_for_end 20 $job || { complain "the launcher waits for a reaper stopped while $1"; kill -KILL $job "$old"; }
    wait $job 2> /dev/null
    alone "after kill -STOP of the reaper while $1"
}
"$LOCKSTEP" run --grace 100 sh slow.sh > out.txt 2>&1 < /dev/null &
job=$!
wait_until 30 test -e asked || complain "the daemon got no SIGTERM: $(cat out.txt)"
old=$(reaper_of $job)
kill -KILL "$old"
wait_until 20 is_replaced || complain "the reaper was not replaced while a daemon was waited for"
stop_reaper "a daemon was waited for"
rm -f go
mkfifo pipe
"$LOCKSTEP" run sh -c "seq 40000; echo \$\$ > ended" > pipe 2> out.txt < /dev/null &
job=$!
{ wait_until 60 test -e go && cat > /dev/null; } < pipe &
has_ended_rank() { [ -s ended ] && ! [ -e "/proc/$(cat ended)" ]; } # all it wrote, 228 kB, is queued
wait_until 30 has_ended_rank || complain "the rank did not end: $(cat out.txt)"
stop_reaper "the reader was waited for"

# Stopped ranks are killed, and a successful job's daemons are killed, also those with an empty environment.
start sh rank.sh
# shellcheck disable=SC2046 # several
kill -STOP $(ps -o pid=,comm= --ppid $job | awk '$2 == "sh" { print $1 }')
kill -KILL $job
wait $job 2> /dev/null
alone "after kill -9 of the launcher with stopped ranks"
"$LOCKSTEP" run -n 2 --grace 0.2 sh -c \
    "setsid ./$tag 6\${RANK}05 & env -i setsid ./$tag 6\${RANK}06 & (trap '' TERM; exec setsid ./$tag 6\${RANK}07) &
    until [ \$(pgrep -fc \"^./$tag 6\${RANK}0[567]\") = 3 ]; do sleep 0.02; done" > out.txt 2>&1 < /dev/null ||
    complain "a job with daemons: $(cat out.txt)"
[ -z "$(members)" ] || complain "after a successful job: $(members | xargs ps -o pid,args -p)"
grep -Eq '[0-9]+ processes that ranks had left did not end within 0\.2 s and were killed' out.txt ||
    complain "does not say that processes were killed: $(cat out.txt)"
alone "after a successful job"

# They are also found behind 20,000 other processes: here this shell, listed so often.
cat > crowd.c <<'C'
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static DIR *processes;
static int  left;
DIR *opendir(const char *path)
{
    DIR *opened = ((DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir"))(path);
    if (strcmp(path, "/proc") == 0) processes = opened, left = 20000;
    return opened;
}
struct dirent *readdir(DIR *directory)
{
    static struct dirent crowd;
    if (directory != processes || left == 0)
        return ((struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir"))(directory);
    left--;
    snprintf(crowd.d_name, sizeof crowd.d_name, "%s", getenv("CROWD"));
    return &crowd;
}
struct dirent64 *readdir64(DIR *directory) { return (struct dirent64 *)readdir(directory); }
C
if [ -z "${LK_SANITIZE:-}" ] && "${CC:-cc}" -shared -fPIC -o crowd.so crowd.c -ldl; then
    crowded=(env CROWD=$$ LD_PRELOAD="$work/crowd.so" "$LOCKSTEP" run env -u LD_PRELOAD sh -c)
    "${crowded[@]}" "setsid ./$tag 6301 & exit 0" > out.txt 2>&1 < /dev/null ||
        complain "a job on a crowded host: $(cat out.txt)"
    [ -z "$(members)" ] || complain "after a job on a crowded host: $(members | xargs ps -o pid,args -p)"
    alone "after a job on a crowded host"
    "${crowded[@]}" "setsid ./$tag 6302 & wait" > out.txt 2>&1 < /dev/null &
    job=$!
    runs_daemon() { pgrep -f "^./$tag 6302" > /dev/null; }
    wait_until 30 runs_daemon || complain "the daemon does not run: $(cat out.txt)"
    kill -KILL $job
    wait $job 2> /dev/null
    alone "after kill -9 of the launcher on a crowded host"
else
    echo "skip: no preloaded library"
fi

# A program whose shell ends at SIGTERM is asked to stop as well, and its output is relayed while it saves.
cat > saves.sh <<S
trap "seq 40000; : > saved; exit 0" TERM
: > up.0
while :; do ./$tag 0.05; done
S
echo 'sh saves.sh; echo never' > wrapper.sh
rm -f up.*
"$LOCKSTEP" run --grace 20 sh wrapper.sh > out.txt 2>&1 < /dev/null &
job=$!
wait_until 30 test -e up.0 || complain "the program in a shell did not start: $(cat out.txt)"
kill -TERM $job
wait $job
[ $? = 143 ] && [ -e saved ] && grep -q '^\[rank 0\] 40000$' out.txt && ! grep -q 'had left' out.txt ||
    complain "a program in a shell could not save: $(tail -3 out.txt)"
alone "after SIGTERM to a program in a shell"

# Processes older than the job are not killed, nor their children: a child of the process that became the launcher, also
# one that is orphaned meanwhile. Tested for a restart, the end of the job, and the reaper.
cat > before.sh <<S
setsid ./$tag 6101 &
(./$tag 0.3; ./$tag 6102) &
(setsid ./$tag 6103 & ./$tag 0.5) &
until pgrep -f "^./$tag 6101" && pgrep -f "^./$tag 6103"; do sleep 0.02; done > /dev/null
exec "$LOCKSTEP" run "\$@"
S
spared() { # spared WHAT: only these three processes run
    [ "$(members | xargs ps -o args= -p | sort | tr '\n' ' ')" = "./$tag 6101 ./$tag 6102 ./$tag 6103 " ] ||
        complain "$1: $(members | xargs ps -o pid,ppid,args -p)"
    for pid in $(members); do kill -KILL "$pid"; done
    alone "$1"
}
orphaned="pgrep -f '^./$tag 6102' && ! pgrep -f '^./$tag 0.[35]' && pgrep -f '^./$tag 6104' && pgrep -f '^./$tag 6105'"
bash before.sh -n 2 --max-restarts 1 --grace 0.2 sh -c \
    "(setsid ./$tag 6104 &); (env -i setsid ./$tag 6105 &); until $orphaned; do sleep 0.02; done > orphans; exit 3" \
    > out.txt 2>&1 < /dev/null
[ $? = 3 ] || complain "with processes older than the job: $(cat out.txt)"
spared "after a job that failed twice"
rm -f up.*
bash before.sh -n 2 sh rank.sh > out.txt 2>&1 < /dev/null &
job=$!
wait_until 30 test -e up.1 && wait_until 30 has_members 11
# All but the three have ended.
are_orphaned() { pgrep -f "^./$tag 6102" > /dev/null && ! pgrep -f "^./$tag 0.5" > /dev/null; }
wait_until 20 are_orphaned
kill -KILL $job
wait $job 2> /dev/null
wait_until 20 has_at_most 3
spared "after kill -9 of the launcher"
# The report reaches a reader that is the launcher's own child.
bash -c '"$0" run -n 2 sh -c "exit 3" 2> >(cat > err.txt; : > err.end)' "$LOCKSTEP"
wait_until 20 test -e err.end
grep -q 'failed first: exit code 3' err.txt || complain "no report for a child of the launcher: $(cat err.txt)"

# A short job that is killed at any time leaves no folder.
for i in $(seq 100); do
    "$LOCKSTEP" run true > /dev/null 2>&1 < /dev/null &
    job=$!
    sleep "0.00$((i % 10))$((i / 10 % 10))" # 0 to 9.9 ms, each once
    kill -KILL $job 2> /dev/null
    wait $job 2> /dev/null
done 2> /dev/null

# If launcher and reaper are killed together, a folder remains. Both are stopped first, so that neither sees the other's
# end. The next launch by this user removes the folder, but not that of a running job, and nothing that is not a job's
# folder.
mkdir precious; : > precious/file
runs() { pgrep -f "^./$tag $1" > /dev/null; }
runs_not() { ! runs "$1"; }
ln -s "$work/precious" tmp/lockstep-00000000000000aa
mkdir tmp/lockstep-00000000000000bb tmp/lockstep-notes
: > tmp/lockstep-00000000000000bb/file
start sh rank.sh
alive=$job
for _ in $(seq 5); do
    "$LOCKSTEP" run ./"$tag" 6201 > /dev/null 2>&1 < /dev/null &
    job=$!
    wait_until 20 runs 6201
    reaper=$(reaper_of $job)
    for pid in $job "$reaper"; do
        kill -STOP "$pid"
        wait_until 20 is_stopped "$pid" || complain "process $pid was not stopped"
    done
    kill -KILL $job "$reaper"
    wait $job 2> /dev/null
    wait_until 20 runs_not 6201
done
[ "$(ls -d tmp/lockstep-???????????????? | wc -l)" -gt 3 ] ||
    complain "no folder was left, so nothing is tested: $(ls tmp)"
"$LOCKSTEP" run true > out.txt 2>&1 < /dev/null || complain "a launch that removes folders: $(cat out.txt)"
[ "$(ls -d tmp/lockstep-???????????????? | wc -l)" = 3 ] || complain "too few or too many folders removed: $(ls tmp)"
kill -0 $alive && [ -e precious/file ] && [ -e tmp/lockstep-00000000000000aa/file ] &&
    [ -e tmp/lockstep-00000000000000bb/file ] && [ -d tmp/lockstep-notes ] ||
    complain "removed files of others: $(ls -R tmp)"
if unshare -rpf --mount-proc true 2> /dev/null; then
    # a lock is visible from another pid namespace, where this user has another name
    unshare -pf --mount-proc "$LOCKSTEP" run true > out.txt 2>&1 < /dev/null ||
        unshare -rpf --mount-proc "$LOCKSTEP" run true > out.txt 2>&1 < /dev/null ||
        complain "a launch in another pid namespace: $(cat out.txt)"
    [ "$(ls -d tmp/lockstep-???????????????? | wc -l)" = 3 ] ||
        complain "a launch in another pid namespace removed a running job's folder: $(ls tmp)"

    # Each rank in its own pid namespace: they cannot check each other's processes, so they are ranks of several hosts.
    as_root=()
    unshare -pf --mount-proc true 2> /dev/null || as_root=(unshare -r)
    for here in 2 1; do
        "${as_root[@]}" "$LOCKSTEP" run -n 2 env LOCAL_WORLD_SIZE=$here unshare -pf --mount-proc \
            "$LOCKSTEP" train --model mlp --data synthetic:64,count=64 --batch 8 --steps 2 --eval-every -1 \
            --threads 1 > out.$here 2>&1 < /dev/null
        echo "exit status $?" >> out.$here
    done
    grep -q 'rank 1 of 2 is in another pid namespace (container) than rank 0.*set LOCAL_WORLD_SIZE' out.2 &&
        grep -q '^exit status 2$' out.2 || complain "ranks of one host in two pid namespaces: $(cat out.2)"
    grep -q '^exit status 0$' out.1 || complain "pid namespaces as two hosts: $(cat out.1)"
fi
kill -KILL $alive
wait $alive 2> /dev/null
alone "after the concurrent job"
rm -rf tmp/lockstep-00000000000000aa tmp/lockstep-00000000000000bb tmp/lockstep-notes

# A job inside a job: the end of the outer job also ends the inner one.
rm -f up.*
"$LOCKSTEP" run "$LOCKSTEP" run -n 2 sh rank.sh > out.txt 2>&1 < /dev/null &
job=$!
wait_until 30 test -e up.1 && wait_until 30 has_members 8
kill -KILL $job
wait $job 2> /dev/null
alone "after kill -9 of a launcher whose rank is a launcher"
is_empty() { [ -z "$(ls tmp)" ]; }
wait_until 20 is_empty || complain "files of jobs remain: $(find tmp)"
exit $wrong
