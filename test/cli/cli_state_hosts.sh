#!/usr/bin/env bash
# cli_state_hosts.sh - --state at the command with ranks on several hosts, which LOCKSTEP_HOST_ID simulates: each host
# with one copy of the state gives the files of replicated ranks on one host, also where weights are tied, blocks
# recomputed and one is resumed as the other; hosts that cannot share are replicated, and `plan` and --verbose-ranks say
# why.
#
# ctest: timeout 300, ranks 6
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN LOCKSTEP_HOST_ID

fail() { echo "$*" >&2; cat out.txt >&2; exit 1; }
# shellcheck disable=SC2016
on_hosts() { # on_hosts RANKS EACH OPTIONS...: so many of them on each host
    local ranks=$1
    export EACH=$2
    shift 2
    "$LOCKSTEP" run -n "$ranks" -- bash -c 'export LOCKSTEP_HOST_ID=host-$((RANK / EACH)); exec "$@"' - \
        "$LOCKSTEP" train --backend mixed --threads 1 --verbose-ranks "$@" > out.txt 2>&1
}
train_hosts() { # train_hosts RANKS EACH DIRECTORY OPTIONS...
    local ranks=$1 each=$2 directory=$3
    shift 3
    on_hosts "$ranks" "$each" --save "$directory" "$@" || fail "$ranks ranks, $each on a host: $*"
}
train() { # train RANKS DIRECTORY OPTIONS...: on one host
    local ranks=$1 directory=$2
    shift 2
    "$LOCKSTEP" train -n "$ranks" --threads 1 --save "$directory" "$@" > out.txt 2>&1 || fail "$ranks ranks: $*"
}
says() { sed -e ':a' -e 'N' -e '$!ba' -e 's/\n  */ /g' out.txt | grep -q -- "$1" || fail "no '$1' in"; }
same() { # same DIRECTORY DIRECTORY
    cmp "$1/model.safetensors" "$2/model.safetensors" && cmp "$1/optimizer.safetensors" "$2/optimizer.safetensors"
}

gpt="--model gpt --layers 2 --width 32 --heads 2 --context 16 --dtype bf16 --clip 1 --optimizer adamw"
gpt="$gpt --weight-decay 0.1 --recompute --batch 12 --eval-every -1"
resnet="--model resnet20 --data synthetic:3x8x8,count=64 --batch 24 --sync-batchnorm --recompute"
resnet="$resnet --eval-every 2 --check-every 1"
# shellcheck disable=SC2086
{
    train 4 gpt --state replicated --steps 3 $gpt
    train_hosts 4 2 gpt-hosts --steps 3 $gpt
    says "rank 3 of 4 (mixed, .*; state shared by the 2 ranks of each of 2 hosts"
    same gpt gpt-hosts
    train 4 resnet --state replicated --steps 3 $resnet
    train_hosts 4 2 resnet-hosts --state shared --steps 3 $resnet
    same resnet resnet-hosts
}

# Half of a run on some hosts, half on others; with three ranks on each, sums are made over leaves.
mlp="--model mlp --batch 24 --reproducible --clip 0.5 --eval-every -1"
# shellcheck disable=SC2086
{
    train 1 whole --steps 8 $mlp
    train_hosts 4 2 halves --steps 4 --state shared $mlp
    train_hosts 6 3 halves --steps 8 --resume auto --state shared $mlp
    same whole halves
    train 3 again --steps 4 --state shared $mlp
    train_hosts 4 2 again --steps 8 --resume auto --state shared $mlp
    same whole again
    train_hosts 6 3 more --steps 4 $mlp
    says "state shared by the 3 ranks of each of 2 hosts"
    train 2 more --steps 8 --resume auto --state replicated $mlp
    same whole more
    # What cannot share is replicated, with the same result.
    train_hosts 5 3 unequal --steps 8 $mlp
    says "state replicated: the ranks are on hosts with different numbers of ranks"
    same whole unequal
    train_hosts 3 1 apart --steps 8 $mlp
    says "state replicated: the ranks are each on a different host"
    same whole apart
    # All on one host.
    train_hosts 3 3 together --steps 8 $mlp
    says "state shared by 3 ranks"
    same whole together
}

refuse() { # refuse TEXT RANKS EACH OPTIONS...
    local text=$1 code=0
    shift
    on_hosts "$@" || code=$?
    [ "$code" = 2 ] || fail "exit status $code"
    says "$text"
}
refuse "ranks number 3 on each host, but sums keep their order only if that is a power of two, so they cannot share" \
    6 3 --model mlp --steps 1 --state shared
refuse "are on hosts with different numbers of ranks" 3 2 --model mlp --steps 1 --state shared

plan() { "$LOCKSTEP" plan --model mlp --batch 24 "$@" > out.txt 2>&1 || fail "plan $*"; }
plan -n 8 --nnodes 2
says "^the state is shared by the 4 ranks of each of 2 hosts"
says "bytes per host of 4 ranks"
says "reduce_scatter on every host, then all_reduce of the slices between hosts"
plan -n 8 --nnodes 2 --sections
says "reduce_scatter sum over ranks, group data by host, parts 4(bucket0)"
plan -n 6 --nnodes 2
says "^the state is replicated: the ranks number 3 on each host, but sums keep their order only if that is a power"
plan -n 6 --nnodes 2 --reproducible
says "^the state is shared by the 3 ranks of each of 2 hosts"
plan -n 6 --nnodes 2 --reproducible --leaves 6
says "^the state is replicated: the ranks on a host do not hold a complete subtree of the 6 leaves"
plan -n 5 --nnodes 2
says "^the state is replicated: the ranks are on 2 hosts with different numbers of ranks"
plan -n 2 --nnodes 2
says "^the state is replicated: the ranks are each on a different host"
plan -n 8 --nnodes 2 --state replicated
says "^the state is replicated, as requested"
plan -n 8 --nnodes 2 --json
python3 - <<'PY'
import json

with open("out.txt") as file:
    p = json.load(file)
shared, replicated = p["shared"], p["replicated"]
assert p["state"] == "shared" and p["hosts"] == 2 and p["state_reason"] == "shared by the 4 ranks of each of 2 hosts", p
assert shared["common"] == p["optimizer_state"] + shared["nodes"] * (p["parameters"] + p["buffers"]), p
assert shared["host"] == shared["common"] + 4 * shared["rank"] and replicated["host"] == 4 * replicated["rank"], p
PY
code=0
"$LOCKSTEP" plan -n 2 --nnodes 3 --model mlp > out.txt 2>&1 || code=$?
[ "$code" = 2 ] || fail "--nnodes 3 for 2 ranks: exit status $code"
says "every host needs at least one"
