#!/usr/bin/env bash
# run_survivors.sh - nobody survives a job: not when a rank dies, ignores SIGTERM or leaves daemons behind, and not when the
# launcher or its keeper is killed with SIGKILL.
# ctest: timeout 180
set -u
# Sanitizers look for leaks at every exit, which takes seconds on some machines; test_launch.c and run_ends.sh have that covered.
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

# Living processes that carry this test's own mark, but for this shell and what it runs itself. Independent of the launcher's mark:
# every process of the job also runs a copy of sleep that bears the test's name.
cp "$(command -v sleep)" "./$tag"
members() { pgrep -f "$tag" | while read -r pid; do [ "$pid" = $$ ] || ! grep -qsv '^$' "/proc/$pid/cmdline" || [ "$(cut -d' ' -f3 "/proc/$pid/stat" 2> /dev/null)" = Z ] || echo "$pid"; done; }
alone() { # alone WHAT: within 10 s
        for _ in $(seq 200); do [ -z "$(members)" ] && return; sleep 0.05; done
    complain "$1: still there: $(members | xargs ps -o pid,ppid,args -p)"
    for pid in $(members); do kill -KILL "$pid"; done
}
# A rank with a daemon in a session of its own, one that was orphaned, a helper in its group, and no ear for SIGTERM.
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
    for _ in $(seq 200); do [ -e up.0 ] && [ -e up.1 ] && [ "$(members | wc -l)" -ge 8 ] && return; sleep 0.05; done
    complain "the ranks did not come up: $(cat out.txt)"
}
keeper_of() { ps -o pid=,comm= --ppid "$1" | awk '$2 == "lk-keeper" { print $1 }'; }

start sh rank.sh
[ -n "$(keeper_of $job)" ] || complain "there is no keeper"
kill -KILL $job
wait $job 2> /dev/null
alone "after kill -9 of the launcher"

start --grace 0.2 sh rank.sh
kill -KILL "$(ps -o pid=,comm= --ppid $job | awk '$2 == "sh" { print $1; exit }')"
wait $job
[ $? = 137 ] || complain "kill -9 of a rank: $(cat out.txt)"
[ -z "$(members)" ] || complain "after kill -9 of a rank: the launcher is gone, but not $(members | xargs ps -o pid,args -p)"
alone "after kill -9 of a rank"

start --grace 0.2 sh rank.sh
kill -TERM $job
wait $job
[ $? = 143 ] || complain "SIGTERM: $(cat out.txt)"
[ -z "$(members)" ] || complain "after SIGTERM: the launcher is gone, but not $(members | xargs ps -o pid,args -p)"
alone "after SIGTERM"

# A keeper that is killed is replaced, and the new one knows the ranks.
start sh rank.sh
old=$(keeper_of $job)
kill -KILL "$old"
for _ in $(seq 200); do new=$(keeper_of $job); [ -n "$new" ] && [ "$new" != "$old" ] && break; sleep 0.05; done
[ -n "$new" ] && [ "$new" != "$old" ] || complain "the keeper was not replaced"
kill -KILL $job
wait $job 2> /dev/null
alone "after kill -9 of the keeper, then of the launcher"

# A stopped rank is not spared, and a job that goes well takes its daemons with it, also those that gave up their environment.
start sh rank.sh
# shellcheck disable=SC2046 # several
kill -STOP $(ps -o pid=,comm= --ppid $job | awk '$2 == "sh" { print $1 }')
kill -KILL $job
wait $job 2> /dev/null
alone "after kill -9 of the launcher with stopped ranks"
"$LOCKSTEP" run -n 2 --grace 0.2 sh -c "setsid ./$tag 6005 & env -i setsid ./$tag 6006 & (trap '' TERM; exec setsid ./$tag 6007) & sleep 0.3" > out.txt 2>&1 < /dev/null ||
    complain "a job with daemons: $(cat out.txt)"
[ -z "$(members)" ] || complain "after a job that went well: $(members | xargs ps -o pid,args -p)"
alone "after a job that went well"

# Who was there before the job is spared, with what comes of it: a child of the process that became the launcher, also one that
# loses its parent meanwhile. A restart and the end of the job sweep, and so does the keeper.
cat > before.sh <<S
setsid ./$tag 6101 &
(./$tag 0.3; ./$tag 6102) &
(setsid ./$tag 6103 & ./$tag 0.5) &
until pgrep -f "^./$tag 6101" && pgrep -f "^./$tag 6103"; do sleep 0.02; done > /dev/null
exec "$LOCKSTEP" run "\$@"
S
spared() { # spared WHAT: the three are there, and nobody else
    [ "$(members | xargs ps -o args= -p | sort | tr '\n' ' ')" = "./$tag 6101 ./$tag 6102 ./$tag 6103 " ] || complain "$1: $(members | xargs ps -o pid,ppid,args -p)"
    for pid in $(members); do kill -KILL "$pid"; done
    alone "$1"
}
bash before.sh -n 2 --max-restarts 1 --grace 0.2 sh -c "(setsid ./$tag 6104 &); (env -i setsid ./$tag 6105 &); sleep 0.8; exit 3" > out.txt 2>&1 < /dev/null
[ $? = 3 ] || complain "with processes that were there before: $(cat out.txt)"
spared "after a job that failed twice"
rm -f up.*
bash before.sh -n 2 sh rank.sh > out.txt 2>&1 < /dev/null &
job=$!
for _ in $(seq 200); do [ -e up.1 ] && [ "$(members | wc -l)" -ge 11 ] && break; sleep 0.05; done
sleep 0.5
kill -KILL $job
wait $job 2> /dev/null
for _ in $(seq 200); do [ "$(members | wc -l)" -le 3 ] && break; sleep 0.05; done
spared "after kill -9 of the launcher"
# The verdict reaches a reader that is the launcher's own child.
bash -c '"$0" run -n 2 sh -c "exit 3" 2> >(cat > err.txt; : > err.end)' "$LOCKSTEP"
for _ in $(seq 100); do [ -e err.end ] && break; sleep 0.05; done
grep -q 'failed first: exit code 3' err.txt || complain "no verdict for a child of the launcher: $(cat err.txt)"

# Killed at any moment of its short life, a job leaves no folder.
for i in $(seq 100); do
    "$LOCKSTEP" run true > /dev/null 2>&1 < /dev/null &
    job=$!
    sleep "0.00$((i % 10))$((i / 10 % 10))"
    kill -KILL $job 2> /dev/null
    wait $job 2> /dev/null
done 2> /dev/null

# Launcher and keeper killed together leave a folder. The next start of this user removes it; not that of a job that lives, and nothing
# that is not ours or no folder of a job.
mkdir precious; : > precious/file
ln -s "$work/precious" tmp/lockstep-00000000000000aa
mkdir tmp/lockstep-00000000000000bb tmp/lockstep-notes
: > tmp/lockstep-00000000000000bb/file
start sh rank.sh
alive=$job
for _ in $(seq 5); do
    "$LOCKSTEP" run ./"$tag" 6201 > /dev/null 2>&1 < /dev/null &
    job=$!
    for _ in $(seq 200); do pgrep -f "^./$tag 6201" > /dev/null && break; sleep 0.02; done
    # shellcheck disable=SC2046 # two
    kill -KILL $job $(keeper_of $job)
    wait $job 2> /dev/null
    for _ in $(seq 200); do pgrep -f "^./$tag 6201" > /dev/null || break; sleep 0.02; done
done
[ "$(ls -d tmp/lockstep-???????????????? | wc -l)" -gt 3 ] || complain "no folder was left, so nothing is tried: $(ls tmp)"
"$LOCKSTEP" run true > out.txt 2>&1 < /dev/null || complain "a start that clears: $(cat out.txt)"
[ "$(ls -d tmp/lockstep-???????????????? | wc -l)" = 3 ] || complain "not cleared, or too much: $(ls tmp)"
kill -0 $alive && [ -e precious/file ] && [ -e tmp/lockstep-00000000000000aa/file ] && [ -e tmp/lockstep-00000000000000bb/file ] && [ -d tmp/lockstep-notes ] ||
    complain "cleared what is not ours: $(ls -R tmp)"
if unshare -rpf --mount-proc true 2> /dev/null; then # a lock is seen from another pid namespace, where this user has another name
    unshare -pf --mount-proc "$LOCKSTEP" run true > out.txt 2>&1 < /dev/null || unshare -rpf --mount-proc "$LOCKSTEP" run true > out.txt 2>&1 < /dev/null ||
        complain "a start in another pid namespace: $(cat out.txt)"
    [ "$(ls -d tmp/lockstep-???????????????? | wc -l)" = 3 ] || complain "a start in another pid namespace cleared a living job's: $(ls tmp)"
fi
kill -KILL $alive
wait $alive 2> /dev/null
alone "after the job beside those that were killed"
rm -rf tmp/lockstep-00000000000000aa tmp/lockstep-00000000000000bb tmp/lockstep-notes

# A job inside a job: the end of the outer one is the end of both.
rm -f up.*
"$LOCKSTEP" run "$LOCKSTEP" run -n 2 sh rank.sh > out.txt 2>&1 < /dev/null &
job=$!
for _ in $(seq 200); do [ -e up.1 ] && [ "$(members | wc -l)" -ge 8 ] && break; sleep 0.05; done
kill -KILL $job
wait $job 2> /dev/null
alone "after kill -9 of a launcher whose rank is a launcher"
for _ in $(seq 200); do [ -z "$(ls tmp)" ] && break; sleep 0.05; done
[ -z "$(ls tmp)" ] || complain "files of jobs are left: $(find tmp)"
exit $wrong
