#!/usr/bin/env bash
# cli_cuda.sh - the command on the device cuda, in the emulation: losses, accumulation and checkpoints beside the CPU's, ranks that share a
# GPU, and the sentences of what goes wrong.   ctest: timeout 240, ranks 2
set -eu
export LOCKSTEP_MODULES=$BUILD_DIR/cuda_emulated LOCKSTEP_DEVICE=cuda
[ -f "$LOCKSTEP_MODULES/liblockstep-cuda.so" ] || { echo "skipped: this build has no emulation of CUDA"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$*"; exit 1; }
expect() { # expect STATUS TEXT COMMAND…: the exit status, and the text on standard error
    local wanted=$1 text=$2 code=0
    shift 2
    "$@" > out.txt 2> err.txt || code=$?
    [ $code = "$wanted" ] || fail "$*: exit status $code, not $wanted: $(cat err.txt)"
    grep -qF -- "$text" err.txt || fail "$*: no \"$text\" in: $(cat err.txt)"
}
train=("$LOCKSTEP" train --model mlp --batch 16 --threads 1 --steps 6)
losses() {
    "${train[@]}" "$@" > err.txt 2>&1 || fail "$*: $(cat err.txt)"
    grep -o 'test loss [0-9.]*' err.txt
}

# The CPU's losses: with one batch a step, with micro-batches, from a checkpoint of the other device.
for options in "--dtype f64" "--dtype f32 --accumulate 3" "--dtype f32 --optimizer adamw --clip 0.5"; do
    # shellcheck disable=SC2086
    [ "$(losses $options)" = "$(losses $options --device cpu)" ] || fail "$options: other losses than on the CPU"
done
losses --save one > /dev/null
[ "$("$LOCKSTEP" eval --load one --device cpu 2>&1 | grep -o 'loss [0-9.]*')" = "$("$LOCKSTEP" eval --load one 2>&1 | grep -o 'loss [0-9.]*')" ] || fail "eval of a checkpoint differs"
"$LOCKSTEP" train --resume one --save one --steps 8 --device cpu > out.txt 2>&1 || fail "the CPU does not resume: $(cat out.txt)"

# Ranks share the one GPU only on request, and then have the bits of one rank with --reproducible.
expect 2 '--share-device' "${train[@]}" -n 2
[ "$(losses --reproducible)" = "$(losses --reproducible --share-device -n 2)" ] || fail "2 ranks that share the GPU: other losses than one"

# What goes wrong.
expect 2 'this machine has 1 GPU' "${train[@]}" --device cuda:3
expect 1 'The plan needs' env LK_CUDA_EMULATED_MEMORY=100000 "${train[@]}"
expect 1 'recorded at' env LK_CUDA_EMULATED_FAIL=launch:9 "${train[@]}" --device-sync
expect 1 'loss became' "${train[@]}" --lr 1e6 --optimizer sgd --steps 60
grep -qF 'The weights were not updated' err.txt || fail "a loss that is not finite: $(cat err.txt)"
expect 2 'there is no' env LOCKSTEP_MODULES="$work" "${train[@]}"
expect 0 '' env LOCKSTEP_MODULES="$work" LOCKSTEP_DEVICE=auto "${train[@]}"
