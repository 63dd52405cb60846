#!/usr/bin/env bash
# peers.sh - the transport p2p on a real GPU: two to four ranks share it under MPS, whose daemon is started here with
# folders of its own; every collective against shared memory, graphs, split groups, and ranks that stop, abort or die.
# Then a training with 2 ranks over p2p and one over shm, whose weights must be the same. Every wait of a kernel ends
# at its group's deadline, and every run has a limit, so nothing is left on the GPU. Skipped where there is no GPU or no
# nvidia-cuda-mps-control. ctest: timeout 600, ranks 4, label gpu
# shellcheck disable=SC2317 # a function is called at the end
set -u
: "${LOCKSTEP:?the command}" "${BUILD_DIR:?the build}"
test -x "$BUILD_DIR/test_p2p" || { echo "there is no test_p2p in $BUILD_DIR"; exit 1; }
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
