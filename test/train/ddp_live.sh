#!/usr/bin/env bash
# ddp_live.sh - PyTorch's DistributedDataParallel, run over gloo by this test, compared with two ranks of ours: the
# first steps of test_ddp_golden.c's stored values. Skipped without PyTorch.
# ctest: timeout 300, ranks 2
set -eu
python3 -c 'import torch.distributed as d, safetensors; assert d.is_available() and d.is_gloo_available()' 2> \
    /dev/null ||
    { echo "skipped: no PyTorch with gloo (and safetensors)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB
PYTHONDONTWRITEBYTECODE=1 GLOO_SOCKET_IFNAME=lo python3 "$SOURCE_DIR/test/golden/make_ddp.py" "$work/live.safetensors" \
    6 > "$work/out.txt" 2>&1 ||
    { cat "$work/out.txt"; exit 1; }
"$BUILD_DIR/test_ddp_golden" "$work/live.safetensors"
