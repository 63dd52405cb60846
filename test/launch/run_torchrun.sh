#!/usr/bin/env bash
# run_torchrun.sh - torchrun's further options of `lockstep run`: each works as in torchrun, or is rejected with the
# reason; and how ranks that are started by hand on several hosts wait for each other, and need a token.
# ctest: timeout 180
set -u
# Leak detection takes seconds at every exit on some machines; test_launch.c and run_ends.sh cover it.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mkdir tmp
export TMPDIR=$work/tmp # so that all leftover files are the job's
wrong=0
complain() { echo "$*" >&2; wrong=1; }
unset OMP_NUM_THREADS LOCKSTEP_THREADS LOCKSTEP_JOB LOCKSTEP_TOKEN LOCKSTEP_TOKEN_FILE LOCKSTEP_JOIN_TIMEOUT NO_COLOR \
    CUDA_VISIBLE_DEVICES
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT

# expect STATUS PATTERN ARGS…: lockstep run ARGS ends with STATUS; its output on both streams, in out.txt, matches
# PATTERN.
expect() {
    local status=$1 pattern=$2 got
    shift 2
    timeout 60 "$LOCKSTEP" run "$@" > out.txt 2>&1 < /dev/null
    got=$?
    [ "$got" = "$status" ] || complain "run $*: exit status $got, not $status: $(cat out.txt)"
    grep -Eq -- "$pattern" out.txt || complain "run $*: does not print '$pattern': $(cat out.txt)"
}
prints() { grep -Eq -- "$1" out.txt || complain "does not print '$1': $(cat out.txt)"; }
two_nodes=(--nnodes 2 --node-rank 0 --master-addr 127.0.0.1)

# Addresses, ports, timeouts.
expect 0 '^\[rank 0\] at 127.0.0.1$' --local-addr 127.0.0.1 sh -c 'echo at $LOCKSTEP_LOCAL_ADDR'
expect 2 "'192.0.2.7' is not an address of this host" --local_addr=192.0.2.7 true
expect 2 "a local address cannot be given for several hosts" --hosts a,b --local-addr 127.0.0.1 true
expect 0 '^\[rank 1\] port [1-9][0-9]{3,4}$' -n 2 --master-port 0 sh -c 'echo port $MASTER_PORT'
[ "$(grep -oE 'port [0-9]+' out.txt | sort -u | wc -l)" = 1 ] ||
    complain "--master-port 0: ranks differ: $(cat out.txt)"
expect 2 "the other hosts cannot know the chosen port" "${two_nodes[@]}" --master-port 0 true
expect 0 '^\[rank 0\] 7.5 s$' --join-timeout 7.5 sh -c 'echo $LOCKSTEP_JOIN_TIMEOUT s'
expect 2 "join-timeout: 0 is out of range" --join-timeout 0 true

# --rdzv-conf.
expect 0 '^\[rank 0\] 900 s$' --rdzv-conf timeout=900,read_timeout=60 sh -c 'echo $LOCKSTEP_JOIN_TIMEOUT s'
expect 0 '^\[rank 0\] 5 s$' --rdzv_conf join_timeout=900 --join-timeout 5 sh -c 'echo $LOCKSTEP_JOIN_TIMEOUT s'
expect 0 '^\[rank 1\] node 1$' --nnodes 2 --rdzv-endpoint h --rdzv-conf rank=1,is_host=false sh -c \
    'echo node $GROUP_RANK'
expect 2 "is_host must be true on host 0 and false on the others" --nnodes 2 --node-rank 1 --rdzv-endpoint h \
    --rdzv-conf is_host=1 true
expect 2 "--node-rank and rank in --rdzv-conf differ" --nnodes 2 --node-rank 1 --rdzv-endpoint h --rdzv-conf rank=0 true
keys="join_timeout, timeout, read_timeout, rank, is_host"
expect 2 "'last_call_timeout' is for elastic sizes, which are not supported; supported keys: $keys" \
    --rdzv-conf last_call_timeout=5 true
expect 2 "'store_type' is unknown; supported keys: join_timeout, " --rdzv-conf timeout=5,store_type=file true
expect 2 "'timeout' needs a number of seconds" --rdzv-conf timeout=soon true
expect 2 "expected KEY=VALUE" --rdzv-conf timeout true
expect 2 "'is_host' needs true or false" --rdzv-conf is_host=perhaps true
expect 2 "elastic sizes are not supported" --nnodes 2:4 true

# Lines.
expect 0 '^<train 1/2 '"$(uname -n)"'> word$' -n 3 --role train --log-line-prefix-template \
    '<${role_name} 1/${local_rank} ${hostname}> ' sh -c 'echo word'
TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='r${rank}:' expect 0 '^r1:word$' -n 2 sh -c 'echo word'
TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='r${rank}:' expect 0 '^x0:word$' --log-line-prefix-template 'x${rank}:' sh -c \
    'echo word'
expect 2 "'\\$\{world\}-' in the line prefix template is not one of" --log-line-prefix-template 'r${world}-' true
expect 2 "expands to [0-9]+ characters: expected at most 255" --log-line-prefix-template "$(printf '%0300d' 0)" true
words='echo "apple $RANK"; echo "a,b $RANK"; echo "pear $RANK"; echo "pear $RANK" >&2; echo "plum $RANK" >&2'
expect 0 '^\[rank 1\] pear 1$' -n 2 --log-dir logs --rdzv-id one --duplicate-stdout-filters apple,a,,b \
    --duplicate_stderr_filters plum sh -c "$words"
[ "$(sort logs/one_*/attempt_0/filtered_stdout.log)" = "[rank 0] a,b 0
[rank 0] apple 0
[rank 1] a,b 1
[rank 1] apple 1" ] || complain "filtered_stdout.log: $(cat logs/one_*/attempt_0/filtered_stdout.log)"
[ "$(sort logs/one_*/attempt_0/filtered_stderr.log)" = "[rank 0] plum 0
[rank 1] plum 1" ] || complain "filtered_stderr.log: $(cat logs/one_*/attempt_0/filtered_stderr.log)"
expect 0 'pear' -n 2 --log-dir logs --rdzv-id two --tee 1:3 --duplicate-stdout-filters apple sh -c "$words"
[ "$(cat logs/two_*/attempt_0/filtered_stdout.log)" = "[rank 1] apple 1" ] ||
    complain "a tee of rank 1 alone: $(cat logs/two_*/attempt_0/filtered_stdout.log)"
[ ! -e "$(echo logs/two_*/attempt_0/filtered_stderr.log)" ] || complain "stderr was filtered without the option"
expect 3 'restart 1 of 1' --max-restarts 1 --log-dir logs --rdzv-id three --duplicate-stdout-filters apple sh -c \
    "$words; exit 3"
[ "$(cat logs/three_*/attempt_1/filtered_stdout.log)" = "[rank 0] apple 0" ] ||
    complain "after a restart: $(find logs/three_*)"

# GPUs and cores.
expect 0 '^\[rank 1\] 0 of 2, GPU 1$' -n 2 --virtual-local-rank sh -c \
    'echo $LOCAL_RANK of $LOCAL_WORLD_SIZE, GPU $CUDA_VISIBLE_DEVICES'
CUDA_VISIBLE_DEVICES=3,GPU-7a,5 expect 0 '^\[rank 1\] 0 of 2, GPU GPU-7a$' -n 2 --virtual_local_rank sh -c \
    'echo $LOCAL_RANK of $LOCAL_WORLD_SIZE, GPU $CUDA_VISIBLE_DEVICES'
CUDA_VISIBLE_DEVICES=3 expect 2 "2 ranks need one GPU each, but CUDA_VISIBLE_DEVICES lists only 1" -n 2 \
    --virtual-local-rank true
expect 2 "not one of node" --numa-binding near true
expect 2 "are mutually exclusive" --numa-binding node --no-pin true
if [ -e /sys/devices/system/node/node0 ]; then
    expect 0 'pinned to cores' -n 2 --numa-binding node sh -c 'grep Cpus_allowed_list /proc/self/status'
else
    expect 2 'no memory nodes' -n 2 --numa-binding node true
fi

# Signals.
expect 0 '^\[rank 0\] SIGTERM,SIGINT,SIGHUP,SIGQUIT$' sh -c 'echo $TORCHELASTIC_SIGNALS_TO_HANDLE'
expect 0 '^\[rank 0\] SIGTERM,SIGUSR1$' --signals-to-handle SIGTERM,SIGUSR1 sh -c 'echo $TORCHELASTIC_SIGNALS_TO_HANDLE'
expect 138 '^\[rank 0\] got USR1$' --signals-to-handle SIGTERM,SIGUSR1 sh -c \
    'trap "echo got USR1; exit 0" USR1; kill -USR1 $PPID; while :; do sleep 0.05; done'
expect 0 '^\[rank 0\] got USR1$' sh -c \
    'trap "echo got USR1; exit 0" USR1; kill -USR1 $PPID; while :; do sleep 0.05; done'
for list in SIGKILL SIGTERM,CHLD SIGTERM, '' SIGNONE; do expect 2 \
    "not a signal that can be handled|the value is empty" "--signals-to-handle=$list" true; done
expect 143 'stopping 1 rank within 3.5 s' --shutdown-timeout 3.5 sh -c \
    'trap "exit 0" TERM; kill -TERM $PPID; while :; do sleep 0.05; done'
TORCH_ELASTIC_SHUTDOWN_TIMEOUT=4.5 expect 143 'stopping 1 rank within 4.5 s' sh -c \
    'trap "exit 0" TERM; kill -TERM $PPID; while :; do sleep 0.05; done'
expect 2 "are the same option" --grace 1 --shutdown-timeout 2 true

# From the environment.
PET_NPROC_PER_NODE=2 PET_ROLE=trainer PET_MASTER_PORT=0 PET_RDZV_ID= expect 0 '^\[rank 1\] 2 trainer$' sh -c \
    'echo $WORLD_SIZE $ROLE_NAME'
PET_NPROC_PER_NODE=2 expect 0 '^\[rank 2\] 3$' -n 3 sh -c 'echo $WORLD_SIZE'
PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=h PET_MASTER_PORT=99 expect 0 '^\[rank 1\] 2 h:99$' sh -c \
    'echo $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT'
PET_NNODES=2 PET_STANDALONE=1 expect 0 '^\[rank 0\] 1$' sh -c 'echo $WORLD_SIZE'
PET_NO_PYTHON=0 PET_STANDALONE=0 expect 0 '^\[rank 0\] 1$' sh -c 'echo $WORLD_SIZE'
PET_MAX_RESTARTS=many expect 2 "PET_MAX_RESTARTS in the environment: 'many' is not a whole number" true
PET_STANDALONE=yes expect 2 "PET_STANDALONE in the environment: 'yes' is neither true nor false" true

# Options that are rejected.
expect 2 "start-method is not supported: ranks are always started by fork and exec" --start-method spawn true
expect 2 "event-log-handler is not supported: " --event_log_handler=null true
expect 2 "logs-specs is not supported: " --logs-specs x true
expect 2 "run-path is not supported: " --run-path /x.py
PET_START_METHOD=fork expect 2 "PET_START_METHOD in the environment is not supported" true
"$LOCKSTEP" run --help | grep -q start-method && complain "the help shows rejected options"

# Several hosts by hand: no token, an invalid one, and a missing host.
train=("$LOCKSTEP" train --model mlp --data synthetic:8 --classes 2 --steps 1 --threads 1)
expect 2 "started by a separate lockstep run on each host, without a common token" "${two_nodes[@]}" "${train[@]}"
prints 'set LOCKSTEP_TOKEN_FILE .* openssl rand -hex 16 > ~/.lockstep-token && chmod 600'
LOCKSTEP_TOKEN=short expect 2 "^lockstep run: LOCKSTEP_TOKEN holds a token of 5 characters: expected 16 to 263" \
    "${two_nodes[@]}" "${train[@]}"
echo 0123456789abcdef > token
chmod 644 token
LOCKSTEP_TOKEN_FILE=$work/token expect 2 "^lockstep run: LOCKSTEP_TOKEN_FILE .* chmod 600 on it" "${two_nodes[@]}" \
    "${train[@]}"
chmod 600 token
LOCKSTEP_TOKEN_FILE=$work/token expect 1 "did not join within" "${two_nodes[@]}" --master-port $((20000 + $$ % 9000)) \
    --join-timeout 7 -n 2 "${train[@]}" --lr "1e-3"
command="lockstep run --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port [0-9]+ -n 2 $LOCKSTEP train"
prints "rank 0 of 4 has waited [56] s for ranks 2-3 to join, and will wait [012] s more; host 1 of 2 is missing, \
start it with: $command --model mlp .*--lr 1e-3"
[ "$(grep -c '^\[rank.*has waited' out.txt)" = 1 ] || complain "it is printed more than once: $(cat out.txt)"
RANK=0 WORLD_SIZE=2 MASTER_PORT=$$ "${train[@]}" --join-timeout 0.3 > out.txt 2>&1 &&
    complain "one of two ranks trained"
prints "rank 1 of 2 did not join within"
left=$(ls "$TMPDIR")
[ -z "$left" ] || complain "leftover files: $left"
exit $wrong
