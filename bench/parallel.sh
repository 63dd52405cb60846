#!/usr/bin/env bash
# parallel.sh - the speed of layouts of two ranks, in pairs: each beside data parallel of the same ranks on the same
# transport, and beside PyTorch's FSDP2 (fully_shard) and DTensor tensor parallel where $PYTHON (python3) has torch. GPT
# of 6 layers, 384 wide, 256 tokens, a batch of 8 sequences, a thread for each rank. Run it on an idle machine.
#   bench/parallel.sh [PAIRS]     3 by default
set -euo pipefail
pairs=${1:-3} lockstep=${LOCKSTEP:-build/lockstep} python=${PYTHON:-python3} steps=${STEPS:-8}
folder=$(dirname "$0")
ours() { # tokens per second
    "$lockstep" bench train --model gpt --batch 8 --threads 1 --steps "$steps" "$@" --json 2> /dev/null |
        sed -n 's/.*"tokens_per_s": *\([0-9.]*\).*/\1/p'
}
theirs() { # MODE BATCH: torch_gpt.py's batch is that of a rank, of tp that of all
    OMP_NUM_THREADS=1 "$python" -m torch.distributed.run --nproc-per-node 2 "$folder/peers/torch_gpt.py" small f32 \
        "$2" 1 "$1" 2> /dev/null |
        sed -n 's/.*tok_per_s=\([0-9.]*\).*/\1/p'
}
has_torch=1
"$python" -c 'import torch' 2> /dev/null || has_torch=
compare() { # compare NAME BAR WORDS… -- WORDS…: the first in units of the second
    local name=$1 bar=$2 a=() b=() at=a i first second
    shift 2
    for word in "$@"; do if [ "$word" = -- ]; then at=b; elif [ $at = a ]; then \
        a+=("$word"); else b+=("$word"); fi; done
    for ((i = 0; i < pairs; i++)); do
        first=$("${a[@]}")
        second=$("${b[@]}")
        awk -v a="$first" -v b="$second" -v name="$name" -v bar="$bar" \
            'BEGIN { printf "%-44s %8.0f %8.0f tokens/s  %.2f (bar %s)\n", name, a, b, a / b, bar }'
    done
}
for backend in shm tcp; do
    data=(ours --mesh data=2 --state replicated --backend $backend)
    shard=(ours --mesh shard=2 --state replicated --backend $backend)
    compare "shard=2 over $backend / data=2" 0.93 "${shard[@]}" -- "${data[@]}"
    if [ -n "$has_torch" ]; then
        compare "shard=2 over $backend / FSDP2" "$([ $backend = shm ] && echo 1.45 || echo 1.3)" "${shard[@]}" -- \
            theirs fsdp 4
    fi
done
compare "tensor=2 / data=2" 0.90 ours --mesh tensor=2 -- ours --mesh data=2 --state replicated
if [ -n "$has_torch" ]; then compare "tensor=2 / DTensor" 1.5 ours --mesh tensor=2 -- theirs tp 8; fi
