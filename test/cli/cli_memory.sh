#!/usr/bin/env bash
# cli_memory.sh - what needs more memory than the machine has available is not started: one message, with what is needed
# and available and what would help, exit status 2; --overcommit insists. Nothing large is allocated: the plans are for
# more than any machine has, or the machine is said to have little, by a file over /proc/meminfo or by a control group.
# ctest: timeout 240, ranks 2
# shellcheck disable=SC2086 # options are lists of words
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
expect() { check_command -E "$1" "$2" timeout -s KILL 100 "${@:3}" < /dev/null; }

# ---- more than any machine has ----
refused='would need [0-9.]+ (TiB|PiB) of memory, but .* available.*; --overcommit starts it anyway$'
huge="--model gpt --layers 64 --width 131072 --heads 64 --vocabulary 512 --context 8 --batch 4 --data synthetic"
train="$LOCKSTEP train $huge --steps 1 --threads 1"
expect 2 "^lockstep train: this process $refused" $train
grep -q 'smaller' err.txt || complain "no advice: $(cat err.txt)"
expect 2 "^lockstep train: the 2 ranks $refused" $train -n 2
[ "$(grep -c 'would need' err.txt)" = 1 ] || complain "not one message: $(cat err.txt)"
expect 2 "^\[rank 0\] lockstep train: the 2 ranks $refused" "$LOCKSTEP" run -n 2 $train
[ "$(grep -c 'would need' err.txt out.txt | awk -F: '{ n += $2 } END { print n }')" = 1 ] ||
    complain "not one message: $(cat out.txt err.txt)"
expect 2 "^lockstep bench: this process $refused" "$LOCKSTEP" bench train $huge --threads 1
expect 2 "^lockstep bench: the 2 ranks $refused" "$LOCKSTEP" bench train $huge -n 2
expect 2 "^lockstep bench: this process $refused" "$LOCKSTEP" bench generate ${huge% --data synthetic} --prompt-tokens \
    2 --tokens 2
expect 2 "^lockstep bench: the 2 ranks $refused" "$LOCKSTEP" bench comm -n 2 --sizes 8,1000G
expect 0 "^lockstep plan: this process would need .* the run would not start here" "$LOCKSTEP" plan $huge --json
grep -q '"fits": false' out.txt || complain "plan: $(cat out.txt)"
small="--model mlp --hidden 16 --data synthetic:16,count=64 --batch 32 --threads 1"
expect 0 "" "$LOCKSTEP" train $small --steps 1 --save run
wide="--model mlp --hidden 1000000 --data synthetic:1000000,count=2 --batch 2 --threads 1" # 4 TB of weights
for command in eval predict; do
    expect 2 "^lockstep $command: this process $refused" "$LOCKSTEP" $command --load run/model.safetensors $wide
done

# ---- a little less than is needed: a made-up /proc/meminfo ----
run="--model mlp --hidden 20000 --data synthetic:16,count=64,classes=2 --batch 32 --steps 2 --optimizer sgd"
run="$run --threads 1 --eval-every -1"
host() { "$LOCKSTEP" plan $run "$@" --json | tee plan.json | sed -E 's/.*"'"$want"'": \{[^}]*"host": ([0-9]+).*/\1/'; }
cat > with << 'END' # KIB COMMAND…
#!/bin/sh
printf 'MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: %d kB\n' "$1" > meminfo
shift
exec unshare -rm sh -c 'mount --bind meminfo /proc/meminfo && exec "$@"' sh "$@"
END
chmod +x with
if ./with 77 grep -q 'MemAvailable: 77 kB' /proc/meminfo 2> /dev/null; then
    for want in shared replicated; do
        kib=$((($(host -n 2) + 1023) / 1024))
        expect 0 "" ./with $kib "$LOCKSTEP" train -n 2 --state $want $run
        expect 2 "the 2 ranks would need .* but the host has .* available" ./with $((kib - 1)) "$LOCKSTEP" train -n 2 \
            --state $want $run
        expect 2 "the 2 ranks would need .* but the host has .* available" ./with $((kib - 1)) "$LOCKSTEP" run -n 2 \
            "$LOCKSTEP" train --state $want $run
        expect 0 "" ./with $((kib - 1)) "$LOCKSTEP" train -n 2 --state $want $run --overcommit
        echo "overcommit = true" > over.conf
        expect 0 "" ./with $((kib - 1)) "$LOCKSTEP" train -n 2 --state $want $run --config over.conf
    done
    expect 2 "^lockstep train: the run would fit with -n 1: the plan then needs" ./with $((kib - 1)) "$LOCKSTEP" train \
        -n 2 --state \
        replicated $run
    enough=$("$LOCKSTEP" plan $run --batch 64 --accumulate 16 --json | sed -E 's/.*"total": ([0-9]+).*/\1/')
    expect 2 "^lockstep train: the run would fit with --accumulate 16" ./with $(((enough + 1023) / 1024)) "$LOCKSTEP" \
        train $run \
        --batch 64
    expect 0 "" ./with 10 "$LOCKSTEP" plan $run
    grep -q 'this process would need' err.txt || complain "plan: $(cat err.txt)"
    pattern="^lockstep bench: the 2 ranks would need 2.0 MiB of memory, but the host has 999.0 KiB available; "
    pattern+="--overcommit"
    expect 2 "$pattern" ./with 999 "$LOCKSTEP" bench comm -n 2 --sizes 1M
    # Whoever resumes on another machine decides anew.
    expect 0 "" ./with 10 "$LOCKSTEP" train $small --steps 1 --save other --overcommit
    expect 2 "would need" ./with 10 "$LOCKSTEP" train --resume other --save other --steps 2 --threads 1
else
    echo "skip: no namespaces for another /proc/meminfo"
fi

# ---- the limit of this process's own control group, and not of the mount's root ----
group=
if own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup) && [ -n "$own" ]; then # version 1
    group=/sys/fs/cgroup/memory$own/lockstep-test-$$ file=memory.limit_in_bytes
elif own=$(sed -n 's/^0:://p' /proc/self/cgroup); then
    group=/sys/fs/cgroup$own/lockstep-test-$$ file=memory.max
fi
printf '#!/bin/sh\necho $$ > "%s/cgroup.procs" && exec "$@"\n' "$group" > inside
chmod +x inside
# 1 GiB: cuBLASLt and cuDNN, whose versions info prints, take 200 MiB when they are loaded.
if mkdir "$group" 2> /dev/null && echo $((1 << 30)) 2> /dev/null > "$group/$file" && ./inside true 2> /dev/null; then
    trap 'rmdir "$group"; rm -rf "$work"' EXIT
    large="--model mlp --hidden 1000000 --data synthetic:1024,count=64 --batch 32 --steps 1 --threads 1 --optimizer sgd"
    pattern="^lockstep train: this process would need .* [MG]iB is available: "
    pattern+="the limit of a control group \(cgroup\) is 1.0 GiB"
    expect 2 "$pattern" ./inside "$LOCKSTEP" train $large
    expect 0 "" ./inside "$LOCKSTEP" info --json
    grep -q '"cgroup_memory_bytes": 1073741824' out.txt || complain "info: $(cat out.txt)"
else
    [ -d "$group" ] && rmdir "$group"
    echo "skip: no control group can be made here"
fi

# ---- the limit of each process: a state of 2.5 times that does not fit, and the mesh that the message names does ----
state="--model gpt --layers 24 --width 512 --heads 8 --context 16 --vocabulary 4096 --data synthetic --batch 4"
state+=" --steps 1 --threads 1 --eval-every -1 --workers 0 --backend tcp"
if [ -z "${LK_SANITIZE:-}" ] && [ "${LOCKSTEP_DEVICE:-cpu}" = cpu ]; then # an address sanitizer maps terabytes
    "$LOCKSTEP" plan ${state% --backend tcp} -n 4 --state replicated --json > plan.json
    bytes=$(python3 -c 'import json
plan = json.load(open("plan.json"))
print(sum(plan[kind] for kind in ("parameters", "gradients", "optimizer_state")))')
    printf '#!/bin/sh\nulimit -v %d && exec "$@"\n' $((bytes * 2 / 5 / 1024)) > limited
    chmod +x limited
    expect 2 "^lockstep train: a process would need .* the limit of a process \(ulimit -v\) is" ./limited "$LOCKSTEP" \
        train -n 4 $state
    axes=$(sed -n 's/^lockstep train: the run would fit with --mesh \([^ ]*\): .*/\1/p' err.txt)
    [ -n "$axes" ] || complain "no mesh is proposed: $(cat err.txt)"
    expect 0 "" ./limited "$LOCKSTEP" train --mesh "${axes:-none}" $state
    expect 0 "" ./limited "$LOCKSTEP" train --mesh shard=4 --shard-stage 3 --state replicated $state
    expect 2 "rank 0 would need .* the limit of a process" ./limited "$LOCKSTEP" run -n 4 "$LOCKSTEP" train $state
    # What threads take is counted: below that nothing starts, instead of failing later.
    "$LOCKSTEP" plan ${state% --backend tcp} --mesh shard=4 --state replicated --json > plan.json
    bytes=$(sed -E 's/.*"total": ([0-9]+).*/\1/' plan.json)
    printf '#!/bin/sh\nulimit -v %d && exec "$@"\n' $((bytes / 1024 + 20000)) > limited
    expect 2 "would need .* the limit of a process" ./limited "$LOCKSTEP" train --mesh shard=4 --state replicated $state
    grep -q 'needs .* but .* is free' err.txt && complain "odd advice: $(cat err.txt)"
fi
exit $((wrong > 0))
