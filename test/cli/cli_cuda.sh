#!/usr/bin/env bash
# cli_cuda.sh - the command on the device cuda, in the emulation: losses, accumulation and checkpoints beside the CPU's,
# ranks that share a GPU, and the sentences of what goes wrong. ctest: timeout 240, ranks 2
set -eu
export LOCKSTEP_MODULES=$BUILD_DIR/cuda_emulated LOCKSTEP_DEVICE=cuda
[ -f "$LOCKSTEP_MODULES/liblockstep-cuda.so" ] || { echo "skipped: this build has no emulation of CUDA"; exit 77; }
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
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
expect_text 0 '): cuda, 1 thread on core' "${train[@]}" --verbose-ranks
losses --save one > /dev/null
[ "$("$LOCKSTEP" eval --load one --device cpu 2>&1 | grep -o 'loss [0-9.]*')" = \
    "$("$LOCKSTEP" eval --load one 2>&1 | grep -o 'loss [0-9.]*')" ] || fail "eval of a checkpoint differs"
for ranks in 1 2; do "$LOCKSTEP" eval --load one -n $ranks --share-device --threads 1 --json > eval$ranks.txt 2> \
    err.txt || fail "eval -n $ranks: $(cat err.txt)"; done
cmp -s eval1.txt eval2.txt || fail "eval on 2 ranks: $(cat eval2.txt), on one: $(cat eval1.txt)"
"$LOCKSTEP" train --resume one --save one --steps 8 --device cpu > out.txt 2>&1 ||
    fail "the CPU does not resume: $(cat out.txt)"

# Data on the device: the same losses, also of the images that augmentation changes, of micro-batches and of a resumed
# run. Images that are read from files are sent as bytes.
images=(--model cnn --data "synthetic:3x8x8,count=40" --batch 12 --crop-padding 2 --flip 0.5 --steps 5)
for options in "" "--accumulate 2" "--dtype f64 --cutout 3"; do
    # shellcheck disable=SC2086
    [ "$(losses "${images[@]}" $options --data-on-device yes)" = \
        "$(losses "${images[@]}" $options --data-on-device no)" ] || fail "$options: data on the device: other losses"
done
losses "${images[@]}" --data-on-device yes --steps 3 --save two > /dev/null
"$LOCKSTEP" train --resume two --steps 5 --data-on-device yes > err.txt 2>&1 ||
    fail "it does not resume: $(cat err.txt)"
[ "$(grep -o 'test loss [0-9.]*' err.txt | tail -1)" = "$(losses "${images[@]}" --data-on-device no | tail -1)" ] ||
    fail "a resumed run with data on the device: other losses"
grep -qF 'data-on-device' err.txt && fail "where data is comes from the record: $(cat err.txt)"
data_bytes() { "$LOCKSTEP" plan "${images[@]}" "$@" --json | grep -o '"data": *[0-9]*' | grep -o '[0-9]*$'; }
[ "$(data_bytes)" -gt 9000 ] || fail "the plan has no data on the device: $(data_bytes)"
[ "$(data_bytes --data-on-device no)" = 0 ] || fail "the plan has data on the device"
[ "$(data_bytes --rotate 10)" -lt "$(data_bytes)" ] || fail "the plan has data that the host changes on the device"
[ "$(LK_CUDA_EMULATED_MEMORY=8000000 data_bytes)" -lt 3000 ] || fail "data that does not fit is on the device"
expect_text 2 'rotations' "${train[@]}" "${images[@]}" --rotate 10 --data-on-device yes
expect_text 2 'kernels run on the CPU' "${train[@]}" --data-on-device yes --device cpu
expect_text 2 'and the plan leaves' env LK_CUDA_EMULATED_MEMORY=200000 "${train[@]}" --data-on-device yes
expect_text 2 'created on demand' "$LOCKSTEP" train --model gpt --layers 1 --width 16 --heads 2 --context 8 --batch 2 \
    --steps 2 --data-on-device yes
expect_text 2 "'maybe'" "${train[@]}" --data-on-device maybe
expect_text 0 '' "${train[@]}" --data-on-device no --device cpu
"$LOCKSTEP" bench train --model mlp --batch 16 --steps 8 --data-on-device yes > out.txt 2>&1 ||
    fail "bench: $(cat out.txt)"
grep -q 'median of 6' out.txt || fail "bench: $(cat out.txt)"
expect_text 2 'are mutually exclusive' "$LOCKSTEP" bench train --model mlp --profile --data-on-device yes

# Ranks share the one GPU only on request, and then have the bits of one rank with --reproducible.
expect_text 2 '--share-device' "${train[@]}" -n 2
[ "$(losses --reproducible)" = "$(losses --reproducible --share-device -n 2)" ] ||
    fail "2 ranks that share the GPU: other losses than one"

# What goes wrong.
expect_text 2 'this machine has 1 GPU' "${train[@]}" --device cuda:3
# Too little memory: the plan's lines, what is free, and options with which the run then fits.
large=("$LOCKSTEP" train --model mlp --batch 4096 --threads 1 --steps 1)
small=(env LK_CUDA_EMULATED_MEMORY=8000000)
expect_text 1 'of its 7.6 MiB is free. The plan needs 19.5 MiB: parameters 0.0 MiB, gradients 0.0 MiB' "${small[@]}" \
    "${large[@]}"
grep -qF 'activations 4.2 MiB, workspace 10.0 MiB' err.txt || fail "the plan's lines are missing: $(cat err.txt)"
grep -qF -- 'the run would fit with --accumulate 4: the plan then needs' err.txt || fail "no advice: $(cat err.txt)"
expect_text 0 '1 steps' "${small[@]}" "${large[@]}" --accumulate 4
expect_text 1 'The plan needs' "${small[@]}" "${large[@]}" --accumulate 2
expect_text 1 'even --accumulate 4096 needs' env LK_CUDA_EMULATED_MEMORY=1000000 "${large[@]}"
expect_text 1 '0.1 MiB is free: use a smaller --batch or model' env LK_CUDA_EMULATED_MEMORY=100000 "${train[@]}"
large=("$LOCKSTEP" train --model gpt --layers 6 --heads 2 --width 64 --context 128 --data synthetic-tokens:128
    --batch 16 --threads 1 --steps 1)
small=(env LK_CUDA_EMULATED_MEMORY=60000000)
expect_text 1 'the run would fit with --recompute: the plan then needs' "${small[@]}" "${large[@]}"

# The plan: what context and libraries hold besides, and the workspace of convolutions that --tf32 gives to cuDNN.
workspace() { "$LOCKSTEP" plan --model cnn --batch 8 "$@" | awk '$1 == "workspace" { print $2 }'; }
"$LOCKSTEP" plan --model mlp > out.txt
grep -q '^overhead on the GPU, .*not measured here:$' out.txt && grep -q '^CUDA context .* MiB$' out.txt ||
    fail "plan does not say what the context holds: $(cat out.txt)"
grep -q '^CUDA libraries ' out.txt || fail "plan does not say what the libraries hold: $(cat out.txt)"
! "$LOCKSTEP" plan --model mlp --device cpu | grep -q CUDA || fail "plan for the CPU has lines about CUDA"
"$LOCKSTEP" plan --model mlp --json | grep -qF '"cuda_measured": false' ||
    fail "plan --json does not say whether it was measured"
[ "$(workspace --tf32)" -gt "$(workspace)" ] || fail "--tf32 plans no workspace for convolutions"
[ "$(workspace --tf32 --dtype f64)" = "$(workspace --dtype f64)" ] || fail "--tf32 changes f64"
expect_text 1 'recorded at' env LK_CUDA_EMULATED_FAIL=launch:9 "${train[@]}" --device-sync
expect_text 1 'loss became' "${train[@]}" --lr 1e6 --optimizer sgd --steps 60
grep -qF 'The weights were not updated' err.txt || fail "a loss that is not finite: $(cat err.txt)"
expect_text 2 'build Lockstep where nvcc is installed' env LOCKSTEP_MODULES="$work" "${train[@]}"
# Without a GPU nothing trains, and plans can be made.
expect_text 2 'device cuda: ' env LK_CUDA_EMULATED_FAIL=devices:0 "${train[@]}" --device cuda
env LK_CUDA_EMULATED_FAIL=devices:0 "$LOCKSTEP" plan --model mlp --device cuda > out.txt 2> err.txt ||
    fail "plan without a GPU: $(cat err.txt)"
expect_text 0 '' env LOCKSTEP_MODULES="$work" LOCKSTEP_DEVICE=auto "${train[@]}"

# Collectives that the ranks' GPUs run by themselves, as nccl-tests prints them.
LK_CUDA_EMULATED_GPUS=2 "$LOCKSTEP" bench comm --device cuda -n 2 --sizes 8,8K > out.txt 2> err.txt ||
    fail "bench comm: $(cat err.txt)"
grep -q '^ *size  *count  *type  *redop  *memory  *time  *algbw  *busbw  *#wrong' out.txt || fail "$(cat out.txt)"
rows=$(awk '$3 == "float" && $5 == "symmetric" && $9 == 0 && $13 == 0 && $6 > 0' out.txt | wc -l)
[ "$rows" = 2 ] || fail "$rows rows, not 2, of symmetric memory in $(cat out.txt)"
expect_text 2 'all_reduce: the ranks communicate through host memory with backend shm' "$LOCKSTEP" bench comm \
    --device cuda -n 2 --share-device --sizes 8 --backend shm
[ "$(grep -c size out.txt)" = 0 ] || fail "a table without rows: $(cat out.txt)"
