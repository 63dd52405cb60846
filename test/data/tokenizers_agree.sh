#!/usr/bin/env bash
# tokenizers_agree.sh - tokenizers against Hugging Face's `tokenizers` and AutoTokenizer, live (interop_tokenizers.py),
# with python3 or the environment that interop.sh keeps.
# ctest: timeout 600
set -u
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: Python cannot load a library with sanitizers"; exit 77; }
for python in "${LOCKSTEP_TEST_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep-test}/python/bin/python" python3; do
    "$python" -c 'import tokenizers' 2> /dev/null || continue
    "$python" "$SOURCE_DIR/test/data/interop_tokenizers.py" "$BUILD_DIR/liblockstep.so" || exit 1
    exit 0
done
echo "skipped: python3 has no tokenizers"
exit 77
