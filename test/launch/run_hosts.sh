#!/usr/bin/env bash
# run_hosts.sh - one launcher, several hosts over ssh. A script replaces ssh: it runs the remote command on this machine
# in its own session and environment, and passes on only standard input, output and the exit status.
# ctest: timeout 180, ranks 4
set -u
# Leak detection takes seconds at every exit on some machines; test_launch.c and run_ends.sh cover it.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
work=$(mktemp -d)
tag=lockstep-hosts-$$
finish() { for pid in $(members); do kill -KILL "$pid"; done 2> /dev/null; rm -rf "$work"; }
trap finish EXIT
cd "$work" || exit 1
wrong=0
complain() { echo "$*" >&2; wrong=1; }
unset LOCKSTEP_JOB LOCKSTEP_TOKEN OMP_NUM_THREADS NO_COLOR
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"
cp "$(command -v sleep)" "./$tag"
members() {
    pgrep -f "$tag" | while read -r pid; do
        [ "$pid" = $$ ] || ! grep -qsv '^$' "/proc/$pid/cmdline" || echo "$pid"
    done
}

cat > fake-ssh <<S
#!/usr/bin/env bash
echo "\$*" >> $work/ssh.log
[ "\$1" = silent ] && exec sleep 100
[ "\$1" = curt ] && exit 0
[ "\$1" = absent ] && { echo "ssh: Could not resolve hostname absent" >&2; exit 255; }
folder=\$(mktemp -d $work/ssh.XXXXXX)
mkfifo "\$folder/in"
exec 3<&0
export COMMAND=\$2 FOLDER=\$folder HOST=\$1
[ "\$1" = other ] && COMMAND=\${COMMAND//$LOCKSTEP//no/such/lockstep}
setsid bash -c '{ env -i PATH="\${FAKE_PATH:-\$PATH}" FAKE_HOST="\$HOST" ASAN_OPTIONS="\$ASAN_OPTIONS" \
sh -c "\$COMMAND" < "\$FOLDER/in" 3<&-; \
echo \$? > "\$FOLDER/part"; mv "\$FOLDER/part" "\$FOLDER/code"; } &' 3<&-
cat <&3 > "\$folder/in" &
feeder=\$!
exec 3<&-
while [ ! -e "\$folder/code" ]; do sleep 0.05; done
kill \$feeder 2> /dev/null
exit "\$(cat "\$folder/code")"
S
chmod +x fake-ssh
ssh="--ssh=$work/fake-ssh"

# expect STATUS PATTERN ARGS…
expect() {
    local status=$1 pattern=$2 got
    shift 2
    "$LOCKSTEP" run "$@" > out.txt 2>&1 < /dev/null
    got=$?
    [ "$got" = "$status" ] || complain "run $*: exit status $got, not $status: $(cat out.txt)"
    grep -Eq -- "$pattern" out.txt || complain "run $*: does not print '$pattern': $(cat out.txt)"
}

# A host that never answers, in the background: its timeout is 30 s.
"$LOCKSTEP" run "$ssh" --hosts one:1,silent:1 --grace 0 true > silent.txt 2>&1 < /dev/null &
silent=$!

show='echo $FAKE_HOST $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE '
show+='$MASTER_ADDR:$MASTER_PORT $LOCKSTEP_TOKEN $LOCKSTEP_OPTION $PWD "$1"'
LOCKSTEP_OPTION="two words" expect 0 "3 ranks \(2 to 4 of 5, node 1 of 2\)" "$ssh" --hosts me@one:2,two:3 sh -c \
    "$show" name 'an argument; with $signs'
for line in "0 me@one 0/5 0/2 0/2" "1 me@one 1/5 1/2 0/2" "2 two 2/5 0/3 1/2" "4 two 4/5 2/3 1/2"; do
    grep -Eq "^\[rank ${line%% *}\] ${line#* } one:[0-9]+ [0-9a-f]{32} two words $work an argument; with \\\$signs\$" \
        out.txt || complain "no line '$line': $(cat out.txt)"
done
[ "$(grep -oE 'one:[0-9]+ [0-9a-f]{32}' out.txt | sort -u | wc -l)" = 1 ] ||
    complain "port or token differ: $(cat out.txt)"
token=$(grep -oE -m1 '[0-9a-f]{32}' out.txt)
grep -q "$token" ssh.log && complain "the token is on ssh's command line"
grep -q -- "run --remote-launcher" ssh.log || complain "the replacement of ssh was not used: $(cat ssh.log)"

# torchrun's further options reach the ranks of other hosts.
expect 0 "^<1/3 of default> 9 0 1 SIGTERM,SIGUSR1\$" "$ssh" --hosts one:2,two:2 --master-port 0 --join-timeout 9 \
    --virtual-local-rank --signals-to-handle SIGTERM,SIGUSR1 \
    --log-dir "$work/several" --duplicate-stdout-filters SIGUSR1 --log-line-prefix-template \
        '<${local_rank}/${rank} of ${role_name}> ' \
    sh -c 'echo $LOCKSTEP_JOIN_TIMEOUT $LOCAL_RANK $CUDA_VISIBLE_DEVICES $TORCHELASTIC_SIGNALS_TO_HANDLE'
[ "$(cat "$work"/several/*/attempt_0/filtered_stdout.log | grep -c '^<[01]/[0-3] of default> 9 0 ')" = 4 ] ||
    complain "filtered lines of two hosts: $(find "$work/several" -type f)"

printf '# hosts\none slots=1\n\ntwo:1 # the second\nthree\n' > hosts
expect 0 "^\[rank 3\] three 3/4 1/2 2/3 10.0.0.1:4711 " "$ssh" --hostfile hosts -n 2 --master-addr 10.0.0.1 \
    --master-port 4711 sh -c "$show"
expect 7 "host two failed first: exit code 7" "$ssh" --hosts one:1,two:2 sh -c \
    '[ $RANK = 2 ] && { echo "output of rank 2"; exit 7; }; exec sleep 600'
grep -q 'rank 2 failed first: exit code 7' out.txt && grep -q '| output of rank 2' out.txt ||
    complain "the remote launcher does not report: $(cat out.txt)"
grep -q 'stopped because of host two: host one' out.txt || complain "the other host: $(cat out.txt)"
expect 255 "255 is also ssh's exit code" "$ssh" --hosts one:1,absent:1 true
expect 2 "cannot start: No such file" "$ssh" --hosts one no-such-program-at-all
# A remote shell has another PATH: the program is where this one is found, lockstep also where the remote launcher is.
# That is on the remote PATH if it is not at the same path.
mkdir bin
printf '#!/bin/sh\necho found $0\n' > bin/only-here
chmod +x bin/only-here
FAKE_PATH=/usr/bin:/bin PATH=$work/bin:$PATH expect 0 "^\[rank 1\] found $work/bin/only-here" "$ssh" --hosts \
    one:1,two:1 only-here
if [ "$(basename "$LOCKSTEP")" = lockstep ]; then
    FAKE_PATH=/usr/bin:/bin expect 0 "^\[rank 0\] lockstep [0-9]" "$ssh" --hosts one lockstep --version
    FAKE_PATH=$(dirname "$LOCKSTEP"):/usr/bin:/bin expect 0 "^\[rank 0\] other" "$ssh" --hosts other \
        sh -c 'echo $FAKE_HOST'
fi
FAKE_PATH=/usr/bin:/bin expect 127 "Lockstep was not found at .* on that host, or on its PATH: .*--remote-command" \
    "$ssh" --hosts other true
expect 0 "^\[rank 0\] file" "$ssh" --hosts one --log-dir logs echo file
[ "$(cat logs/*/attempt_0/0/stdout.log)" = file ] || complain "--log-dir on a remote host: $(find logs)"
expect 2 "'x:y' is not a host" "$ssh" --hosts x:y true
expect 2 "'-oProxyCommand=x' is not a host" "$ssh" --hosts -oProxyCommand=x true
expect 2 "'::1' is not a host" "$ssh" --hosts ::1 true
expect 2 "'\[::1\]2' is not a host" "$ssh" --hosts '[::1]2' true
expect 0 "^\[rank 1\] me@::1 1/3 1/2 0/2 ::1:[0-9]+ " "$ssh" --hosts 'me@[::1]:2,[fe80::2]' sh -c "$show"
grep -q '^\[rank 2\] fe80::2 2/3 0/1 1/2 ' out.txt || complain "an address without a number: $(cat out.txt)"
expect 1 "host curt failed first: it exited without answering" "$ssh" --hosts one,curt true
expect 2 "no local rank 3, only 0 to 2" "$ssh" --hosts one:1,two:3 --local-ranks-filter 3 true
expect 0 "^\[rank 3\]" "$ssh" --hosts one:1,two:3 --local-ranks-filter 2 echo
# A failure on one host restarts all ranks of all hosts, with another token, until a generation succeeds.
again='[ $TORCHELASTIC_RESTART_COUNT = 2 ] && { echo done $RANK $TORCHELASTIC_MAX_RESTARTS; exit 0; }; '
again+='echo $LOCKSTEP_TOKEN >> tokens; [ $RANK = 1 ] && exit 7; sleep 60'
expect 0 "restart 2 of 3" "$ssh" --hosts a:1,b:1 --max-restarts 3 sh -c "$again"
for rank in 0 1; do grep -q "^\[rank $rank\] done $rank 3\$" out.txt ||
    complain "rank $rank did not succeed: $(cat out.txt)"; done
[ "$(sort -u tokens | wc -l)" = 2 ] || complain "tokens of two generations: $(cat tokens)"
expect 7 "restart 1 of 1" "$ssh" --hosts a:1,b:1 --max-restarts 1 sh -c '[ $RANK = 1 ] && exit 7; sleep 60'
expect 2 "hosts: cannot open|contains no host" --hostfile /dev/null true

# The host of the rank that was killed or stopped is named, not one whose ranks only noticed it.
train='"$0" train --model mlp --steps 100000000 --eval-every -1 --threads 1 --timeout 2 --log '$work/steps
trains="until [ -s $work/steps ]; do sleep 0.05; done" # until it has made steps
for victim in 0 1; do
    name=one; [ $victim = 1 ] && name=two
    rm -f steps
    expect 137 "host $name failed first: exit code 137" "$ssh" --hosts one:1,two:1 --master-addr 127.0.0.1 sh -c \
        "[ \$RANK = $victim ] && ($trains; kill -KILL \$\$) & exec $train" "$LOCKSTEP"
    grep -q "rank $victim failed first: signal 9" out.txt ||
        complain "the remote launcher does not name rank $victim: $(cat out.txt)"
    grep -q "rank $((1 - victim)) failed first" out.txt && complain "a survivor is named: $(cat out.txt)"
done
rm -f steps
expect 1 "rank 0 stopped answering: host one, noticed on host two" "$ssh" --hosts one:1,two:1 --master-addr 127.0.0.1 \
    sh -c "[ \$RANK = 0 ] && ($trains; kill -STOP \$\$) & exec $train" "$LOCKSTEP"
grep -q "rank 1 failed because of rank 0, which is not on this host: exit code 1" out.txt ||
    complain "the other remote launcher: $(cat out.txt)"
grep -q "lockstep-remote-launcher" out.txt && complain "messages of remote launchers are shown: $(cat out.txt)"

# A remote launcher rejects an invalid or empty specification.
for garbage in '' 'x' 'token=1\0\0' 'nonsense\0\0' 'ranks=many\0\0' 'argument\0\0'; do
    printf "$garbage" | timeout 10 "$LOCKSTEP" run --remote-launcher > out.txt 2>&1
    got=$?
    { [ $got = 1 ] || [ $got = 2 ]; } && grep -q launcher out.txt ||
        complain "remote launcher given '$garbage': exit status $got: $(cat out.txt)"
done

# Remote ranks do not survive the launcher, nor their ssh.
cat > rank.sh <<S
trap '' TERM
(setsid ./$tag 6001 > /dev/null 2>&1 &)
: > up.\$RANK
while :; do ./$tag 6002; done
S
has_members() { [ "$(members | wc -l)" -ge "$1" ]; }
has_no_members() { [ -z "$(members)" ]; }
alone() { wait_until 10 has_no_members || complain "$1: still there: $(members | xargs ps -o pid,ppid,args -p)"; }
start() {
    rm -f up.*
    "$LOCKSTEP" run "$ssh" --hosts one:1,two:1 --grace 0.3 sh rank.sh > out.txt 2>&1 < /dev/null &
    job=$!
    wait_until 30 test -e up.0 && wait_until 30 test -e up.1 && wait_until 30 has_members 4 ||
        complain "the remote ranks did not start: $(cat out.txt)"
}
start; kill -KILL $job; wait $job 2> /dev/null; alone "after kill -9 of the launcher"
start; kill -TERM $job; wait $job; got=$?; [ $got = 143 ] || complain "SIGTERM: exit status $got: $(cat out.txt)"
alone "after SIGTERM"
start; kill -KILL "$(ps -o pid=,args= --ppid $job | awk '/fake-ssh two/ { print $1; exit }')"; wait $job; got=$?
[ $got = 137 ] || complain "kill -9 of one ssh: exit status $got: $(cat out.txt)"
alone "after kill -9 of one ssh"
# SIGUSR1 reaches the ranks of other hosts, and their exit code is the job's.
for code in 0 138; do
    rm -f up.*
    "$LOCKSTEP" run "$ssh" --hosts one:1,two:2 sh -c \
        'trap "echo got USR1; exit '$code'" USR1; : > up.$RANK; while :; do sleep 0.1; done' > out.txt 2>&1 < \
        /dev/null &
    job=$!
    for rank in 0 1 2; do wait_until 30 test -e up.$rank; done
    kill -USR1 $job; wait $job; got=$?
    [ $got = $code ] && [ "$(grep -c 'got USR1$' out.txt)" = 3 ] && ! grep -q failed out.txt ||
        complain "SIGUSR1 to several hosts: $got $(cat out.txt)"
done
wait $silent; got=$?
[ $got = 1 ] && grep -q 'host silent failed first: no answer within 30 s' silent.txt &&
    grep -q "check that .* silent '.*' --version" silent.txt ||
    complain "a host that never answers: exit status $got: $(cat silent.txt)"
grep -q 'signal 9' silent.txt && complain "our own SIGKILL is reported as the failure: $(cat silent.txt)"
exit $wrong
