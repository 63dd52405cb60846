#!/usr/bin/env bash
# predictions.sh - the step time that `lockstep plan --measure` predicts for 12 layouts, beside what `lockstep bench
# train` measures, and the median error. Run it on an idle machine with as many cores as the layouts have ranks: 2, or
# RANKS.
#   bench/predictions.sh [WORDS…]     options of the model; by default GPT of 6 layers, 384 wide, a batch of 8
# LINK (12GB) and LATENCY (10, in microseconds) are those between ranks: shared memory by default.
set -euo pipefail
lockstep=${LOCKSTEP:-build/lockstep} ranks=${RANKS:-2} steps=${STEPS:-12} link=${LINK:-12GB} latency=${LATENCY:-10}
model=("$@")
[ $# -gt 0 ] || model=(--model gpt --batch 8)
layouts=(
    "data=1"
    "data=1 --micro-batches 4"
    "data=$ranks"
    "data=$ranks --state replicated"
    "data=$ranks --micro-batches 2"
    "shard=$ranks --state replicated --shard-stage 2"
    "shard=$ranks --state replicated"
    "tensor=$ranks"
    "tensor=$ranks --no-sequence-parallel"
    "pipeline=$ranks --micro-batches 4"
    "pipeline=$ranks --micro-batches 8"
    "pipeline=$ranks --micro-batches 8 --pipeline-schedule zero-bubble"
)
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
# number NAME COMMAND…: a number of the JSON that it prints; a failure is named with the layout.
number() {
    local name=$1 found
    shift
    found=$("$@" --json 2> "$errors" | sed -n "s/.*\"$name\": *\([0-9.e+-]*\).*/\1/p") || found=
    [ -n "$found" ] && echo "$found" && return
    echo "predictions.sh: $layout: $* failed: $(tail -n 3 "$errors")" >&2
    return 1
}
rows=()
printf '%-66s %10s %10s %8s\n' layout predicted measured error
for layout in "${layouts[@]}"; do
    # shellcheck disable=SC2086
    predicted=$(number step_seconds "$lockstep" plan "${model[@]}" --threads 1 --mesh $layout --measure \
        --link "$link" --latency-us "$latency")
    # shellcheck disable=SC2086
    rate=$(number steps_per_s "$lockstep" bench train "${model[@]}" --threads 1 --mesh $layout --steps "$steps")
    row=$(awk -v name="$layout" -v a="$predicted" -v b="$rate" 'BEGIN {
        printf "%-66s %7.1f ms %7.1f ms %6.1f %%\n", name, 1e3 * a, 1e3 / b, 100 * (a * b - 1) }')
    rows+=("$row")
    echo "$row"
done
[ ${#rows[@]} = 12 ] || { echo "predictions.sh: ${#rows[@]} layouts, not 12" >&2; exit 1; }
printf '%s\n' "${rows[@]}" | awk '{ print $(NF - 1) < 0 ? -$(NF - 1) : $(NF - 1) }' | sort -g | awk '
    { error[NR] = $1 }
    END { printf "median error %.1f %%\n", (error[int((NR + 1) / 2)] + error[int(NR / 2) + 1]) / 2 }'
