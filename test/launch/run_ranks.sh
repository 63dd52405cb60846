#!/usr/bin/env bash
# run_ranks.sh - `lockstep run` on one host: the same environment as torchrun's, how programs are started, cores, the
# command line in torchrun's spellings, exit statuses of user errors.
# ctest: timeout 120, label quick
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
unset OMP_NUM_THREADS LOCKSTEP_THREADS LOCKSTEP_JOB LOCKSTEP_TOKEN NO_COLOR

# expect STATUS PATTERN ARGS…: lockstep run ARGS ends with STATUS; its output on both streams, in out.txt, matches
# PATTERN.
expect() {
    local status=$1 pattern=$2 got
    shift 2
    "$LOCKSTEP" run "$@" > out.txt 2>&1 < /dev/null
    got=$?
    [ "$got" = "$status" ] || complain "run $*: exit status $got, not $status: $(cat out.txt)"
    grep -Eq -- "$pattern" out.txt || complain "run $*: does not print '$pattern': $(cat out.txt)"
}

# The environment of each rank, compared with torchrun's documentation.
cat > show.sh <<'S'
for name in RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE \
    ROLE_NAME MASTER_ADDR TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS \
    TORCHELASTIC_USE_AGENT_STORE; do
    eval "printf '%s=%s ' $name \"\$$name\""
done
echo
echo "port=$MASTER_PORT token=$LOCKSTEP_TOKEN"
[ -d "$(dirname "$TORCHELASTIC_ERROR_FILE")" ] && echo "error file can be written"
S
expect 0 "^lockstep run: 3 ranks on " -n 3 --rdzv-id my-job --role trainer --max-restarts 2 sh show.sh
for rank in 0 1 2; do
    line="[rank $rank] RANK=$rank WORLD_SIZE=3 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=3 GROUP_RANK=0 GROUP_WORLD_SIZE=1 "
    line+="ROLE_RANK=$rank ROLE_WORLD_SIZE=3 ROLE_NAME=trainer MASTER_ADDR=127.0.0.1 TORCHELASTIC_RUN_ID=my-job "
    line+="TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=2 TORCHELASTIC_USE_AGENT_STORE=False "
    grep -qxF -- "$line" out.txt || complain "rank $rank does not see: $line; but: $(cat out.txt)"
done
[ "$(grep -cE 'port=[0-9]+ token=[0-9a-f]{32}$' out.txt)" = 3 ] ||
    complain "no port or no token of 128 bits: $(cat out.txt)"
[ "$(grep -oE 'port=.*' out.txt | sort -u | wc -l)" = 1 ] || complain "ranks differ in port or token: $(cat out.txt)"
[ "$(grep -c 'error file can be written' out.txt)" = 3 ] || complain "no directory for TORCHELASTIC_ERROR_FILE"
first=$(grep -oE -m1 'token=.*' out.txt)
expect 0 "token=" sh show.sh
[ "$(grep -oE -m1 'token=.*' out.txt)" != "$first" ] || complain "two jobs have one token"

# The token is only in the environment, not on a command line.
expect 0 "nowhere" sh -c \
    'for f in /proc/[0-9]*/cmdline; do
    tr "\0" " " < $f 2> /dev/null | grep -qF "$LOCKSTEP_TOKEN" && echo "in $f"; done; echo nowhere'
grep -q "in /proc" out.txt && complain "the token is on a command line"

# Threads and cores.
cores=$(nproc)
granted() { # "quota period" of this process's own control group and of all above it, at the usual mounts
    local group
    for group in "$(sed -n 's/^0:://p' /proc/self/cgroup)" \
        "$(sed -n 's/^[0-9]*:\(cpu\|cpu,.*\|.*,cpu\):/cpu/p' /proc/self/cgroup)"; do
        while :; do
            cat "/sys/fs/cgroup/$group/cpu.max" 2> /dev/null ||
                paste -d' ' "/sys/fs/cgroup/$group/cpu.cfs_quota_us" "/sys/fs/cgroup/$group/cpu.cfs_period_us" 2> \
                /dev/null
            case $group in */*) group=${group%/*} ;; *) break ;; esac
        done
    done
}
busy=$(granted | awk -v cores="$cores" 'BEGIN { least = cores }
    $1 + 0 > 0 { most = int(($1 + $2 - 1) / $2); if (most < least) least = most } END { print least }')
threads='echo threads $LOCKSTEP_THREADS OMP is $OMP_NUM_THREADS'
expect 0 "threads 1 OMP is 1\$" -n "$cores" sh -c "$threads"
OMP_NUM_THREADS=5 expect 0 "OMP_NUM_THREADS=5" sh -c "$threads"
grep -q 'threads 5 OMP is 5' out.txt || complain "OMP_NUM_THREADS was set already: $(cat out.txt)"
LOCKSTEP_THREADS=3 expect 0 "threads 3 OMP is 3\$" -n 2 sh -c "$threads"
LOCKSTEP_THREADS=3 OMP_NUM_THREADS=4,2 expect 0 "OMP_NUM_THREADS=4,2, LOCKSTEP_THREADS=3" sh -c "$threads"
grep -q 'threads 3 OMP is 4,2' out.txt || complain "both were set already: $(cat out.txt)"
expect 0 "not pinned: only" -n $((cores + 1)) true
show_cores='grep Cpus_allowed_list /proc/self/status'
all=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
expect 0 "not pinned" -n 2 --no-pin sh -c "$show_cores"
grep -q "Cpus_allowed_list:[[:space:]]$all\$" out.txt || complain "--no-pin: cores are not $all: $(cat out.txt)"
if [ "$cores" -ge 2 ]; then
    # Every thread of our own ranks runs on the rank's cores alone, which no other rank has. Lent cores are a rank's own
    # for a moment.
    threads_of='{ "$0" train --model mlp --steps 1000000000 --eval-every -1 --keep-cores --verbose-ranks \
        2> "err.$RANK" & }; trainer=$!
        for _ in $(seq 600); do grep -q " on core" "err.$RANK" && break; sleep 0.1; done
        cat /proc/$trainer/task/*/status | grep Cpus_allowed_list | sort -u; touch "seen.$RANK"
        for _ in $(seq 600); do [ -e seen.0 ] && [ -e seen.1 ] && break; sleep 0.1; done
        kill -KILL $trainer; wait $trainer 2> /dev/null; true'
    expect 0 "assigned to cores" -n 2 sh -c "$threads_of" "$LOCKSTEP"
    [ "$(grep -c 'Cpus_allowed_list:' out.txt)" = 2 ] &&
        [ "$(grep -o 'Cpus_allowed_list:.*' out.txt | sort -u | wc -l)" = 2 ] ||
        complain "threads of two ranks share cores: $(cat out.txt err.?)"
    # Other programs may use all cores of their memory node, which DataLoaders of PyTorch count.
    expect 0 "assigned to cores" -n 2 sh -c "$show_cores"'; echo "cores $LOCKSTEP_CORES"'
    [ "$(grep -o '\] cores .*' out.txt | sort -u | wc -l)" = 2 ] ||
        complain "two ranks have the same cores: $(cat out.txt)"
    if [ "$(cat /sys/devices/system/node/online 2> /dev/null || echo 0)" = 0 ]; then
        [ "$(grep -c "Cpus_allowed_list:[[:space:]]$all\$" \
            out.txt)" = 2 ] || complain "a program is restricted to its share of the cores: $(cat out.txt)"
    fi
    taskset -c "${all%%[-,]*}" "$LOCKSTEP" run -n 1 sh -c "$show_cores" > out.txt 2>&1
    grep -q "assigned to cores ${all%%[-,]*}, " out.txt ||
        complain "the launcher's own affinity is ignored: $(cat out.txt)"
    # LOCKSTEP_CORES applies where the process may use them; what is no list of cores is ignored.
    first=${all%%[-,]*}
    allowed() { "$@" "$LOCKSTEP" info --json | grep -o '"cores_allowed": [0-9]*' | grep -o '[0-9]*$'; }
    [ "$(allowed env LOCKSTEP_CORES="$first")" = 1 ] ||
        complain "LOCKSTEP_CORES=$first: $(allowed env LOCKSTEP_CORES="$first") cores"
    for list in x 1- 5-2 -1 0-99999 "$first,x" ""; do [ "$(allowed env LOCKSTEP_CORES="$list")" = "$cores" ] ||
        complain "LOCKSTEP_CORES='$list' is used"; done
    LOCKSTEP_CORES=$all taskset -c "$first" "$LOCKSTEP" info --json | grep -q '"cores_allowed": 1,' ||
        complain "LOCKSTEP_CORES widens the cores that a user chose"
fi

# How programs are started.
if command -v python3 > /dev/null; then
    printf 'import os, sys\nprint("python", os.environ["RANK"], sys.argv[1:], __name__)\n' > script.py
    expect 0 "^\[rank 1\] python 1 \['--nproc', '-m'\] __main__\$" --nproc-per-node 2 script.py --nproc -m
    mkdir package && touch package/__init__.py && cp script.py package/tool.py
    expect 0 "^\[rank 0\] python 0 \['x'\] __main__\$" -m package.tool x
    printf '#!/bin/sh\necho a shell runs this\n' > shell.py && chmod +x shell.py
    expect 0 "a shell runs this" --no-python ./shell.py
fi
expect 2 "absent.py: not found or not readable" absent.py
expect 2 "absent: cannot start: No such file" -n 2 absent
touch plain
expect 2 "plain: cannot start: Permission denied" ./plain
expect 2 "plain/x: cannot start: Not a directory" ./plain/x
expect 2 "a module needs Python" --no-python -m json.tool

# Spellings, and where the launcher's options end.
expect 0 "^\[rank 1\] 2 -n 7\$" --nproc_per_node=2 --monitor_interval 5 --local_ranks_filter=1 sh -c \
    'echo $WORLD_SIZE "$@"' name -n 7
grep -q '^\[rank 0\]' out.txt && complain "--local-ranks-filter 1 shows rank 0: $(cat out.txt)"
expect 0 "^\[rank 2\] --help" -n3 -- printf '%s\n' --help
expect 0 "Usage: lockstep run" --help
expect 0 "WORLD 1\$" --standalone --nnodes 1 sh -c 'echo WORLD $WORLD_SIZE'
expect 0 "WORLD 1 0 127.0.0.1\$" --standalone --nnodes=2 --node-rank=1 --master-addr h sh -c \
    'echo WORLD $WORLD_SIZE $GROUP_RANK $MASTER_ADDR'
expect 0 "RUN x/y\$" --rdzv-id x/y --log-dir logs sh -c 'echo RUN $TORCHELASTIC_RUN_ID'
[ -f "$(echo logs/x_y_??????/attempt_0/0/stdout.log)" ] || complain "an id with a slash: $(find logs)"
expect 0 "^\[rank 0\] $busy\$" --nproc-per-node cpu sh -c 'echo $WORLD_SIZE'
CUDA_VISIBLE_DEVICES=3,5 expect 0 "^\[rank 1\] 2\$" --nproc-per-node gpu sh -c 'echo $WORLD_SIZE'
CUDA_VISIBLE_DEVICES='' expect 2 "has no GPU" --nproc-per-node gpu true
CUDA_VISIBLE_DEVICES='' expect 0 "^\[rank 0\] $busy\$" --nproc-per-node auto sh -c 'echo $WORLD_SIZE'
expect 2 "no program given: expected lockstep run" -n 2
expect 2 "expected 1 to 4096" -n 0 true
expect 2 "'many' is not a number of ranks" -n many true
expect 2 "did you mean --nproc-per-node" --nproc-per-nod 2 true
expect 2 "unknown option -x" -x true
expect 2 "'7' is invalid: expected 0 " --tee 7 true
expect 2 "'0:4' is invalid: expected 0 " --redirects 0:4 true
for list in one , 0, ,0 0,,1 -1; do expect 2 "not a comma-separated list of local ranks" -n 2 \
    "--local-ranks-filter=$list" true; done
expect 2 "no local rank 7, only 0 to 1" -n 2 --local-ranks-filter 1,7 true

# Several hosts: the ranks' numbers, and missing options.
expect 0 "^\[rank 5\] 6 1 2 3 h:1234\$" --nnodes 2 --node-rank 1 --master-addr h --master-port 1234 -n 3 \
    sh -c 'echo $WORLD_SIZE $GROUP_RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT'
expect 0 "^\[rank 1\] h:29400\$" --nnodes=2:2 --rdzv_backend=c10d --rdzv_endpoint=h --node_rank 1 sh -c \
    'echo $MASTER_ADDR:$MASTER_PORT'
expect 0 "^\[rank 1\] ::1:77\$" --nnodes 2 --rdzv-endpoint '[::1]:77' --node-rank 1 sh -c \
    'echo $MASTER_ADDR:$MASTER_PORT'
expect 0 "^\[rank 0\] 127.0.0.1:[0-9]{4,5}\$" --rdzv-backend c10d --rdzv-endpoint localhost:0 sh -c \
    'echo $MASTER_ADDR:$MASTER_PORT'
expect 2 "each needs --node-rank" --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1 true
expect 2 "each needs --master-addr" --nnodes 2 --node-rank 0 true
expect 2 "less than --nnodes" --nnodes 2 --node-rank 2 --master-addr h true
expect 2 "elastic sizes are not supported" --nnodes 1:4 true
expect 2 "restarts are not supported with several hosts" --nnodes 2 --node-rank 0 --master-addr h --max-restarts 1 \
    true
expect 2 "expected HOST:PORT" --nnodes 2 --rdzv-endpoint h:port --node-rank 0 true

# Standard input goes to rank 0.
echo "from outside" | "$LOCKSTEP" run -n 2 cat > out.txt 2>&1
[ "$(grep -c 'from outside' out.txt)" = 1 ] && grep -q '^\[rank 0\] from outside' out.txt ||
    complain "standard input: $(cat out.txt)"
left=$(ls "$TMPDIR")
[ -z "$left" ] || complain "leftover files: $left"
exit $wrong
