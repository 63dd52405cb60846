#!/usr/bin/env bash
# bf16_accuracy.sh - what training in bf16 reaches, beside f32, with three seeds: tinyshakespeare with nanoGPT's recipe
# for CPUs (validation loss at most 1.92 in bf16), and SimpleCNN on Fashion-MNIST, three epochs (the median accuracy in
# bf16 at most 0.4 points below that of f32). Prints a table, and exits with 1 where a bound is missed.
#   bench/bf16_accuracy.sh [LOCKSTEP [TEXT [IMAGES]]]
# LOCKSTEP: the command (build/lockstep). TEXT: tinyshakespeare's input.txt (../shared/data/tinyshakespeare/input.txt).
# IMAGES: the data set of images (fashion-mnist), or fashion-mnist:DIR.
# Some minutes a run on two cores. OPTIONS: further options of every run, such as "--matmul-precision bf16" for f32.
set -eu
lockstep=${1:-build/lockstep}
text=${2:-../shared/data/tinyshakespeare/input.txt}
images=${3:-fashion-mnist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
missed=0
[ -f "$text" ] || { echo "bf16_accuracy.sh: no such file: $text" >&2; exit 2; }

# The last evaluation's number of a log: evaluated FILE NAME
evaluated() { sed -n "s/.*\"event\": \"evaluated\".*\"$2\": \([^,}]*\).*/\1/p" "$1" | tail -1; }
# train NAME OPTIONS…: its events in $work/NAME
train() {
    local name=$1
    shift
    # shellcheck disable=SC2086
    "$lockstep" train "$@" ${OPTIONS:-} --log "$work/$name" > "$work/out" 2>&1 || { cat "$work/out" >&2; exit 2; }
}
median() { printf '%s\n' "$@" | sort -g | sed -n 2p; }

gpt=(--model gpt --layers 4 --heads 4 --width 128 --context 64 --tokenizer char --batch 12 --optimizer adamw --lr 1e-3
    --schedule cosine --lr-min 1e-4 --warmup 100 --betas "0.9,0.99" --weight-decay 0.1 --clip 1 --steps 2000
    --data "text:$text")
cnn=(--model cnn --data "$images" --epochs 3)

echo "task              dtype  seed  result"
for type in f32 bf16; do
    for seed in 1 2 3; do
        train gpt "${gpt[@]}" --dtype $type --seed $seed
        loss=$(evaluated "$work/gpt" loss)
        printf '%-17s %-6s %-5s validation loss %.4f\n' tinyshakespeare $type $seed "$loss"
        [ $type = f32 ] || awk "BEGIN { exit !($loss <= 1.92) }" || missed=1
    done
done
declare -A accuracies
for type in f32 bf16; do
    for seed in 1 2 3; do
        train cnn "${cnn[@]}" --dtype $type --seed $seed
        accuracy=$(evaluated "$work/cnn" accuracy)
        accuracies[$type]+="$accuracy "
        percent=$(awk "BEGIN { print 100 * $accuracy }")
        printf '%-17s %-6s %-5s accuracy %.2f %%\n' "Fashion-MNIST" $type $seed "$percent"
    done
done
# shellcheck disable=SC2086
wide=$(median ${accuracies[f32]}) narrow=$(median ${accuracies[bf16]})
awk "BEGIN { printf \"median accuracy: %.2f %% in f32, %.2f %% in bf16\n\", 100 * $wide, 100 * $narrow }"
awk "BEGIN { exit !(100 * ($wide - $narrow) <= 0.4) }" || missed=1
[ $missed = 0 ] || echo "a bound is missed: 1.92, or 0.4 points"
exit $missed
