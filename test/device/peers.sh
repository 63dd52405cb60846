#!/usr/bin/env bash
# peers.sh - the transport p2p on a real GPU: two to four ranks share it under MPS, whose daemon is started here with
# folders of its own; every collective against shared memory, graphs, split groups, random delays, and ranks that stop,
# abort or die. Then memcheck, trainings over p2p and over shm, whose weights must be the same, and one that stops.
# Every wait of a kernel ends at its group's deadline, and every run has a limit, so nothing is left on the GPU. Skipped
# where there is no GPU or no nvidia-cuda-mps-control. ctest: timeout 900, ranks 4, label gpu
# shellcheck disable=SC2317 # a function is called at the end
set -u
: "${LOCKSTEP:?the command}" "${BUILD_DIR:?the build}"
for test in test_p2p test_p2p_training; do
    test -x "$BUILD_DIR/$test" || { echo "there is no $test in $BUILD_DIR"; exit 1; }
done
"$LOCKSTEP" info 2> /dev/null | grep -q 'cuda:0: ' || { echo "skipped: no GPU"; exit 77; }
command -v nvidia-cuda-mps-control > /dev/null || { echo "skipped: no nvidia-cuda-mps-control"; exit 77; }

work=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$work/pipe CUDA_MPS_LOG_DIRECTORY=$work/log
mkdir "$work/pipe" "$work/log"
finish() {
    echo quit | timeout 30 nvidia-cuda-mps-control > /dev/null 2>&1
    rm -rf "$work"
}
trap finish EXIT
nvidia-cuda-mps-control -d || { echo "the daemon of MPS does not start"; exit 1; }
for _ in $(seq 100); do [ -e "$work/pipe/control" ] && break; sleep 0.1; done

export LOCKSTEP_DEVICE=cuda LOCKSTEP_SHARE_DEVICE=1
bad=0
LK_TEST_GPU=1 timeout 300 "$BUILD_DIR/test_p2p" || { echo "FAIL test_p2p: status $?"; bad=1; }
LK_TEST_GPU=1 LOCKSTEP_CUDA_MEASURE=0 timeout 300 "$BUILD_DIR/test_p2p_training" ||
    { echo "FAIL test_p2p_training: status $?"; bad=1; }

# memcheck of the kernels. compute-sanitizer knows nothing of MPS. initcheck would not know what peers have written.
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ -x "$sanitizer" ]; then
    LK_TEST_GPU=turns timeout 200 env -u CUDA_MPS_PIPE_DIRECTORY "$sanitizer" --tool memcheck --error-exitcode 99 \
        --target-processes all --launch-timeout 60 "$BUILD_DIR/test_p2p" || { echo "FAIL memcheck: status $?"; bad=1; }
else
    echo "skipped: memcheck: compute-sanitizer is not installed"
fi

# The same training with each backend: the weights are the same, bit for bit.
export XDG_CACHE_HOME=$work/cache
for backend in p2p shm; do
    timeout 120 "$LOCKSTEP" train -n 2 --backend $backend --model mlp --data synthetic --steps 20 --batch 64 \
        --save "$work/$backend" > "$work/$backend.log" 2>&1 ||
        { echo "FAIL train with $backend: status $?"; tail -5 "$work/$backend.log"; bad=1; }
done
cmp "$work/p2p/model.safetensors" "$work/shm/model.safetensors" || { echo "FAIL the weights differ"; bad=1; }
[ $bad = 0 ] && echo "p2p on a GPU under MPS: all passed"
exit $bad
