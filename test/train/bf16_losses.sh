#!/usr/bin/env bash
# bf16_losses.sh - losses of 20 steps in bf16 stay as near to PyTorch's f32 as its own autocast does (bf16_losses.py).
# Skipped where python3, or $LOCKSTEP_TEST_PYTHON, has no torch with safetensors. ctest: timeout 900
set -eu
: "${LOCKSTEP:?the command}" "${SOURCE_DIR:?the tree}"
python=${LOCKSTEP_TEST_PYTHON:-python3}
"$python" -c 'import numpy, safetensors.torch, torch' 2> /dev/null ||
    { echo "skipped: no PyTorch (with numpy and safetensors)"; exit 77; }
PYTHONDONTWRITEBYTECODE=1 "$python" "$SOURCE_DIR/test/train/bf16_losses.py" "$LOCKSTEP"
