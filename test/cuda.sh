#!/usr/bin/env bash
# cuda.sh - everything that needs a GPU, in one go: the tests of kernels and the C tests of programs and trainers on the device cuda, losses
# of 50 steps beside the CPU's, ranks that share the GPU, a killed rank, code for sm_80 from PTX, and compute-sanitizer over our kernels.
# The time of each part is printed; logs of what fails stay in $BUILD_DIR/cuda_logs. `cuda.sh PART…` runs some of: kernels tests losses
# ranks kill ptx sanitizer.   ctest: timeout 900, ranks 3, label gpu
# shellcheck disable=SC2317 # functions are called by name
set -u
: "${LOCKSTEP:?the command}" "${BUILD_DIR:?the build}"
at_once=${LK_CUDA_AT_ONCE:-8} # tests that share the GPU
export LOCKSTEP_DEVICE=cuda LOCKSTEP_SHARE_DEVICE=1
logs=$BUILD_DIR/cuda_logs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache # algorithms that were chosen: none at first, then shared by all
failed=0
fail() { echo "FAIL $*" >&2; failed=1; }

if ! "$LOCKSTEP" train --model mlp --batch 8 --steps 1 --eval-every -1 > "$work/first" 2>&1; then
    echo "skipped: $(grep -m1 -E 'cuda|GPU' "$work/first" || tail -1 "$work/first")"
    exit 77
fi
rm -rf "$logs"
mkdir -p "$logs"
"$LOCKSTEP" info | grep -iE 'gpu|cuda' || true

# run_listed NAME LIMIT: runs the lines of standard input, each a name and a command, at_once at a time. 77 is "skipped".
run_one() {
    local name=$1 limit=$2 log begin=$SECONDS status
    shift 2
    log=$logs/$name.log
    timeout -k 5 "$limit" "$@" > "$log" 2>&1
    status=$?
    case $status in
    0) rm -f "$log" ;;
    77) echo "skipped $name: $(grep -m1 skipped "$log")"; rm -f "$log" ;;
    124 | 137) echo "FAIL $name: more than $limit s" ;;
    *) echo "FAIL $name: exit status $status: $(grep -m2 -iE 'fail|error' "$log" | head -c 400)" ;;
    esac
    [ $((SECONDS - begin)) -lt 30 ] || echo "slow $name: $((SECONDS - begin)) s"
}
export -f run_one
export logs
run_listed() {
    xargs -P "$at_once" -d '\n' -I LINE bash -c "set -- LINE; name=\$1; shift; run_one \"\$name\" $2 \"\$@\"" > "$work/$1"
    grep -v '^FAIL' "$work/$1"
    while read -r line; do fail "${line#FAIL }"; done < <(grep '^FAIL' "$work/$1")
}

# "NAME COMMAND…" of the tests that the build registered under a name with this ending
registered() {
    sed -n "s/^add_test(\[=\[\(test_[a-z0-9_]*\)_$1\]=\] \(.*\))\$/\1 \2/p; s/^add_test(\(test_[a-z0-9_]*\)_$1 \(.*\))\$/\1 \2/p" \
        "$BUILD_DIR/CTestTestfile.cmake"
}
kernel_tests() { for test in "$BUILD_DIR"/test_kernels*; do [ -x "$test" ] && echo "$(basename "$test") $test"; done | grep -v covered; }

part_kernels() {
    export LK_KERNELS_RAN=$work/ran
    mkdir -p "$LK_KERNELS_RAN"
    run_listed kernels 240 < <(kernel_tests)
    "$BUILD_DIR/test_kernels_covered" > "$work/covered" 2>&1 || fail "$(cat "$work/covered")"
    unset LK_KERNELS_RAN
}

part_tests() {
    run_listed tests 240 < <(
        registered guarded
        echo "test_device $BUILD_DIR/test_device"
    )
}

# losses FILE: step and loss of each line of a log
losses() { sed -n 's/.*"event": "step", "step": \([0-9]*\),.*"loss": \([^,}]*\).*/\1 \2/p' "$1"; }
# compare NAME TOLERANCE STEPS OPTIONS…: the losses of the CPU and of the GPU, relative
compare() {
    local name=$1 tolerance=$2 steps=$3 device
    shift 3
    for device in cpu cuda; do
        "$LOCKSTEP" train "$@" --device $device --steps "$steps" --optimizer adamw --lr 1e-3 --eval-every -1 --log "$work/$name.$device" \
            > "$work/$name.out" 2>&1 || { fail "$name on $device: $(tail -2 "$work/$name.out")"; return; }
        losses "$work/$name.$device" > "$work/$name.$device.losses"
    done
    paste -d' ' "$work/$name.cpu.losses" "$work/$name.cuda.losses" |
        awk -v name="$name" -v tolerance="$tolerance" -v steps="$steps" '
            { error = ($2 - $4) / $2; if (error < 0) error = -error; if (!(error <= worst)) worst = error; count++ }
            END { printf "%-12s %d steps: the losses differ by at most %.1e\n", name, count, worst
                  exit count == steps && worst <= tolerance ? 0 : 1 }' || fail "$name: the losses differ by more than $tolerance"
}
part_losses() {
    local images="--data synthetic:3x32x32,count=400 --batch 16" tokens="--data synthetic --batch 4 --layers 2 --heads 4 --width 64"
    # shellcheck disable=SC2086
    {
        compare cnn_f64 1e-9 50 --model cnn --dtype f64 $images
        compare resnet_f64 1e-9 50 --model resnet20 --dtype f64 $images
        compare gpt_f64 1e-9 50 --model gpt --dtype f64 $tokens
        compare llama_f64 1e-9 50 --model llama --kv-heads 2 --dtype f64 $tokens
        compare cnn_f32 1e-4 20 --model cnn $images
        compare gpt_f32 1e-4 20 --model gpt $tokens
        compare cnn_bf16 2e-2 20 --model cnn --dtype bf16 $images
        compare gpt_bf16 2e-2 20 --model gpt --dtype bf16 $tokens
    }
}

# train OPTIONS…: the hash of the weights after some steps
train() {
    "$LOCKSTEP" train "$@" --batch 24 --steps 8 --eval-every -1 --json 2> "$work/err" | sed -n 's/.*"hash": *"\([0-9a-f]*\)".*/\1/p'
}
part_ranks() {
    local one many ranks backend model
    for model in "cnn --data synthetic:3x32x32,count=200" "gpt --data synthetic --layers 2 --heads 2 --width 32"; do
        # shellcheck disable=SC2086
        one=$(train --model $model --reproducible)
        [ -n "$one" ] || fail "$model: $(tail -2 "$work/err")"
        for ranks in 2 3; do
            for backend in shm tcp; do
                # shellcheck disable=SC2086
                many=$(train --model $model --reproducible --share-device -n $ranks --backend $backend)
                [ "$many" = "$one" ] || fail "$model, $ranks ranks over $backend: ${many:-$(tail -2 "$work/err")} instead of $one"
            done
        done
        # shellcheck disable=SC2086
        [ -n "$(train --model $model --share-device -n 2)" ] || fail "$model, 2 ranks: $(tail -2 "$work/err")"
    done
    env -u LOCKSTEP_SHARE_DEVICE "$LOCKSTEP" train --model mlp --steps 1 -n 65 > "$work/err" 2>&1 && fail "65 ranks share GPUs that they were not allowed to"
    grep -q -- '--share-device' "$work/err" || fail "more ranks than GPUs: $(tail -2 "$work/err")"
}

# A rank that is killed is named, and no process of the group stays.
part_kill() {
    local job victim="" status
    "$LOCKSTEP" train --model cnn --data synthetic:3x32x32,count=200 --batch 24 --steps 100000 --eval-every -1 --share-device -n 3 \
        > "$work/out" 2> "$work/err" &
    job=$!
    for _ in $(seq 100); do
        for pid in $(pgrep -P $job); do tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | grep -qx RANK=1 && victim=$pid; done
        grep -q 'step' "$work/err" && [ -n "$victim" ] && break
        sleep 0.2
    done
    [ -n "$victim" ] || { fail "kill: no rank 1 to kill"; kill $job; wait $job; return; }
    kill -KILL "$victim"
    wait $job
    status=$?
    [ $status -ne 0 ] || fail "kill: the exit status is 0"
    grep -q 'rank 1' "$work/err" || fail "kill: rank 1 is not named: $(tail -3 "$work/err")"
    [ -z "$(pgrep -P $job)" ] || fail "kill: processes stay"
}

# GPUs of other kinds run what the driver makes of the PTX.
part_ptx() {
    CUDA_FORCE_PTX_JIT=1 LK_TEST_SLOW=1 run_listed ptx 240 < <(
        kernel_tests | grep -E 'test_kernels(_norm|_gemm)? '
        registered guarded | grep test_golden_ops
    )
}

# The libraries' own kernels are left out.
part_sanitizer() {
    local libraries='cutlass|cudnn|cublas|nvjet|xmma|ampere_|sm80_|sm90_|fmha'
    command -v compute-sanitizer > /dev/null || { echo "skipped: compute-sanitizer is not installed"; return; }
    LK_TEST_SLOW=1 LOCKSTEP_CUDA_PLAIN=1 run_listed sanitizer 400 < <(
        for tool in memcheck racecheck initcheck synccheck; do
            kernel_tests | while read -r name test; do
                echo "$name.$tool compute-sanitizer --tool $tool --error-exitcode 1 --print-limit 20 --kernel-regex-exclude 'kns=$libraries' $test"
            done
        done
    )
}

for part in "${@:-all}"; do
    [ "$part" != all ] || set -- kernels tests losses ranks kill ptx sanitizer
done
begin=$SECONDS
for part; do
    from=$SECONDS
    "part_$part"
    echo "$part: $((SECONDS - from)) s"
done
echo "all: $((SECONDS - begin)) s"
[ $failed = 0 ] && echo ok
exit $failed
