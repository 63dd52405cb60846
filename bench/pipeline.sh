#!/usr/bin/env bash
# pipeline.sh - the speed of two stages, in pairs: the schedules beside the ideal (one rank's time for the same
# micro-batches, halved, with the bubble of two stages), zero-bubble beside 1f1b, and 1f1b beside PyTorch's
# torch.distributed.pipelining where $PYTHON (python3) has torch. GPT of 6 layers, 384 wide, 256 tokens, 8 sequences,
# each a micro-batch, a thread for each rank. Run it on an idle machine.
#   bench/pipeline.sh [PAIRS]     5 by default
set -euo pipefail
pairs=${1:-5} lockstep=${LOCKSTEP:-build/lockstep} python=${PYTHON:-python3} steps=${STEPS:-12} parts=8
folder=$(dirname "$0")
ours() { # tokens per second
    "$lockstep" bench train --model gpt --batch $parts --threads 1 --steps "$steps" --micro-batches $parts "$@" --json \
        2> /dev/null | sed -n 's/.*"tokens_per_s": *\([0-9.]*\).*/\1/p'
}
theirs() {
    OMP_NUM_THREADS=1 "$python" -m torch.distributed.run --nproc-per-node 2 "$folder/peers/torch_pipeline.py" $parts \
        2> /dev/null | sed -n 's/.*tok_per_s=\([0-9.]*\).*/\1/p'
}
has_torch=1
"$python" -c 'import torch' 2> /dev/null || has_torch=
for ((i = 0; i < pairs; i++)); do
    one=$(ours -n 1)
    plain=$(ours --mesh pipeline=2)
    zero=$(ours --mesh pipeline=2 --pipeline-schedule zero-bubble)
    awk -v one="$one" -v plain="$plain" -v zero="$zero" -v parts=$parts 'BEGIN {
        ideal = 2 * one * parts / (parts + 1)
        printf "1f1b %.0f tokens/s, %.1f %% of the ideal %.0f (bar 92); zero-bubble %.0f, %.3f times 1f1b\n",
            plain, 100 * plain / ideal, ideal, zero, zero / plain }'
    [ -z "$has_torch" ] || awk -v ours="$plain" -v theirs="$(theirs)" 'BEGIN {
        printf "1f1b / torch.distributed.pipelining: %.0f / %.0f tokens/s, %.2f (bar 1.2)\n", ours, theirs,
            ours / theirs }'
done
