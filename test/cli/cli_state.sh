#!/usr/bin/env bash
# cli_state.sh - --state at the command: shared and replicated give the same files, also where weights are tied, blocks
# recomputed and one is resumed as the other; `plan` prints both; what cannot be shared is one sentence.
#
# ctest: timeout 300, ranks 4
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN

train() { # train RANKS DIRECTORY OPTIONS...
    local ranks=$1 directory=$2
    shift 2
    "$LOCKSTEP" train -n "$ranks" --threads 1 --eval-every -1 --save "$directory" "$@" > out.txt 2>&1 ||
        { cat out.txt >&2; exit 1; }
}
same() { # same DIRECTORY DIRECTORY
    cmp "$1/model.safetensors" "$2/model.safetensors" && cmp "$1/optimizer.safetensors" "$2/optimizer.safetensors"
}

gpt="--model gpt --layers 2 --width 32 --heads 2 --context 16 --dtype bf16 --clip 1 --optimizer adamw"
gpt="$gpt --weight-decay 0.1 --recompute --batch 12"
resnet="--model resnet20 --data synthetic:3x8x8,count=64 --batch 24 --sync-batchnorm --recompute"
for ranks in 2 3 4; do
    # shellcheck disable=SC2086
    for state in shared replicated; do
        train $ranks gpt-$state-$ranks --state $state --steps 3 $gpt
        train $ranks resnet-$state-$ranks --state $state --steps 3 $resnet
    done
    same gpt-shared-$ranks gpt-replicated-$ranks
    same resnet-shared-$ranks resnet-replicated-$ranks
done

# Half of a run with one, half with the other.
mlp="--model mlp --batch 24 --reproducible"
# shellcheck disable=SC2086
{
    train 1 whole --steps 8 $mlp
    train 3 halves --steps 4 --state shared $mlp
    train 2 halves --steps 8 --resume auto --state replicated $mlp
    train 4 again --steps 4 --state replicated $mlp
    train 3 again --steps 8 --resume auto --state shared $mlp
}
same whole halves
same whole again

# --state shared and --keep-cores of a record are what that run preferred: ranks without common memory go on. On the
# command line it is a demand.
# shellcheck disable=SC2086
train 2 moved --steps 2 --state shared --keep-cores $mlp
"$LOCKSTEP" train --threads 1 --save moved --resume auto --backend tcp --steps 4 > out.txt 2>&1 ||
    { cat out.txt >&2; exit 1; }
grep -q 'which the checkpoint records, is not supported here; the state is replicated: the ranks do not share memory' \
    out.txt
"$LOCKSTEP" train --threads 1 --save moved --resume auto --steps 8 > out.txt 2>&1 || { cat out.txt >&2; exit 1; }
! grep -q 'not supported' out.txt
same whole moved
status=0
"$LOCKSTEP" train --threads 1 --save moved --resume auto --backend tcp --state shared --steps 9 > out.txt 2>&1 ||
    status=$?
[ $status = 2 ] && grep -q 'cannot share their state' out.txt || { cat out.txt >&2; exit 1; }

"$LOCKSTEP" plan -n 4 --model mlp --batch 24 --json > plan.json
python3 - <<'PY'
import json

with open("plan.json") as file:
    p = json.load(file)
shared, replicated = p["shared"], p["replicated"]
assert p["state"] == "shared", p
assert shared["common"] == p["parameters"] + p["optimizer_state"] and replicated["common"] == 0, p
assert shared["rank"] == p["total"] - shared["common"], p
assert shared["host"] == shared["common"] + 4 * shared["rank"] and replicated["host"] == 4 * replicated["rank"], p
PY

# A copy of the parameters for each memory node.
LOCKSTEP_MEMORY_NODES=3 "$LOCKSTEP" plan -n 4 --model mlp --batch 24 --json > nodes.json
LOCKSTEP_MEMORY_NODES=3 "$LOCKSTEP" plan -n 4 --model mlp --batch 24 > nodes.txt
python3 - <<'PY'
import json

with open("nodes.json") as file:
    p = json.load(file)
shared = p["shared"]
assert shared["nodes"] == 3 and shared["node"] == p["parameters"], p
assert shared["common"] == 3 * p["parameters"] + p["optimizer_state"], p
with open("nodes.txt") as file:
    assert f"{p['parameters']} for each of 3 memory nodes" in file.read()
PY

# Synchronised statistics are in common, others are not.
for option in --sync-batchnorm ""; do
    # shellcheck disable=SC2086
    "$LOCKSTEP" plan -n 4 --model resnet20 --data synthetic:3x8x8,count=64 --batch 24 $option --json > plan$option.json
done
python3 - <<'PY'
import json

def common(name):
    with open(name) as file:
        p = json.load(file)
    return p["shared"]["common"] - p["parameters"] - p["optimizer_state"], p["buffers"]

shared, buffers = common("plan--sync-batchnorm.json")
own, _ = common("plan.json")
assert buffers > 0 and shared == buffers and own == 0, (shared, own, buffers)
PY

refuse() { # refuse TEXT COMMAND...
    local text=$1 code=0
    shift
    "$@" > out.txt 2>&1 || code=$?
    if [ "$code" != 2 ] || ! grep -q "$text" out.txt; then echo "exit status $code, no '$text' in:"; cat out.txt; exit \
        1; fi
}
refuse "do not share memory" "$LOCKSTEP" train -n 2 --model mlp --steps 1 --backend tcp --state shared
refuse "cannot use: plan it" env LOCKSTEP_DEVICE=guarded "$LOCKSTEP" train -n 2 --model mlp --steps 1 --state shared
refuse "not one of auto|shared|replicated" "$LOCKSTEP" train --model mlp --state common
