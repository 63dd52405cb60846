#!/usr/bin/env bash
# cli_gpus.sh - ranks on several GPUs, in the emulation: each sees all of them, or only its own, and those that use one
# GPU are found by its UUID. ctest: timeout 240, ranks 3
set -eu
export LOCKSTEP_MODULES=$BUILD_DIR/cuda_emulated LOCKSTEP_DEVICE=cuda LK_CUDA_EMULATED_GPUS=4
[ -f "$LOCKSTEP_MODULES/liblockstep-cuda.so" ] || { echo "skipped: this build has no emulation of CUDA"; exit 77; }
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
unset CUDA_VISIBLE_DEVICES
train="$LOCKSTEP train --model mlp --data synthetic:7,classes=3,count=60 --batch 12 --steps 3"
train+=" --threads 1 --reproducible"
uuid() { echo "GPU-6c6f636b-7374-6570-2d65-6d756c61743$1"; } # as nvidia-smi -L would list the emulation's GPU $1

# loss NAME COMMAND…: the line with the test loss.
loss() {
    local name=$1
    shift
    "$@" > "$name.txt" 2>&1 || fail "$name: $(cat "$name.txt")"
    grep -o 'test loss [0-9.]*, accuracy [0-9.]*' "$name.txt"
}
# shellcheck disable=SC2086
one=$(loss one $train)
# each VARIABLES OPTION…: 3 ranks; the variables may contain $RANK.
each() { "$LOCKSTEP" run -n 3 -- bash -c "export $1; exec $train ${*:2}"; }

# All GPUs visible; only the rank's own, by number, by UUID, by the launcher.
# shellcheck disable=SC2086
[ "$(loss all $train -n 3)" = "$one" ] || fail "3 ranks on 4 GPUs: other losses"
# shellcheck disable=SC2016
[ "$(loss numbers each 'CUDA_VISIBLE_DEVICES=$((3 - RANK))')" = "$one" ] || fail "a GPU each: other losses"
# shellcheck disable=SC2016
[ "$(loss tcp each 'CUDA_VISIBLE_DEVICES=$RANK' --backend tcp)" = "$one" ] || fail "a GPU each, over tcp: other losses"
# shellcheck disable=SC2016
[ "$(loss uuids each "CUDA_VISIBLE_DEVICES=$(uuid '$RANK')")" = "$one" ] || fail "a GPU each, by UUID: other losses"
# shellcheck disable=SC2086
[ "$(loss virtual "$LOCKSTEP" run -n 3 --virtual-local-rank -- $train)" = "$one" ] ||
    fail "--virtual-local-rank: other losses"

# Two ranks that have a GPU in common are refused without permission, whatever number each has for it.
for backend in shm tcp; do
    # shellcheck disable=SC2016
    expect_text 2 "ranks 0 and 2 use the same GPU, $(uuid 2): start at most one rank per GPU, or let" \
        each 'CUDA_VISIBLE_DEVICES=$((RANK == 1 ? 0 : 2))' --backend $backend
    # shellcheck disable=SC2016
    [ "$(loss shared each 'CUDA_VISIBLE_DEVICES=$((RANK == 1 ? 0 : 2))' --backend $backend --share-device)" = \
        "$one" ] || fail "two ranks that share a GPU over $backend: other losses"
done
# shellcheck disable=SC2016
expect_text 2 "ranks 1 and 2 use the same GPU, $(uuid 3)" each \
    'CUDA_VISIBLE_DEVICES=$(case $RANK in 0) echo 2 ;; 1) echo 0,3,2 ;; 2) echo 0,1,3 ;; esac)'
loss given each 'CUDA_VISIBLE_DEVICES=1' --device cuda:0 > /dev/null # its number is a permission
# shellcheck disable=SC2086
expect_text 2 '5 ranks on this host need one GPU each, but the host has 4: start at most 4' $train -n 5
expect_text 2 'this machine has 2 GPUs' env CUDA_VISIBLE_DEVICES=3,1 bash -c "$train --device cuda:2"

# MPS is recommended when ranks share a GPU without it, once a job; and by info.
export CUDA_MPS_PIPE_DIRECTORY=$work/mps
advice='3 ranks share GPU-6c6f636b-7374-6570-2d65-6d756c617431 without MPS'
loss without each 'CUDA_VISIBLE_DEVICES=1' --share-device > /dev/null
[ "$(grep -cF "$advice" without.txt)" = 1 ] || fail "MPS is not recommended once: $(cat without.txt)"
loss tcp_without each 'CUDA_VISIBLE_DEVICES=1' --share-device --backend tcp > /dev/null
[ "$(grep -cF "$advice" tcp_without.txt)" = 1 ] || fail "MPS is not recommended over tcp: $(cat tcp_without.txt)"
"$LOCKSTEP" info | grep -q 'MPS: not running; when ranks share a GPU (--share-device), start it with' ||
    fail "info does not recommend MPS"
mkdir mps
mkfifo mps/control # as the daemon has it
loss with each 'CUDA_VISIBLE_DEVICES=1' --share-device > /dev/null
! grep -q MPS with.txt || fail "MPS is recommended though it runs: $(cat with.txt)"
"$LOCKSTEP" info | grep -q 'MPS: its control daemon is running' || fail "info does not see MPS"
rm -r mps
! grep -q MPS all.txt numbers.txt virtual.txt || fail "MPS is recommended to ranks that share no GPU"
