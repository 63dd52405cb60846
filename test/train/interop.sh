#!/usr/bin/env bash
# interop.sh - directories exchanged with Hugging Face's transformers, both ways and in versions 5 and 4: logits,
# shards, bf16, training (interop.py); tokenizers (interop_tokenizers.py). Where python3, or $LOCKSTEP_TEST_PYTHON, has
# no torch and transformers, they are installed into a virtual environment, about 1 GB once; it stays in
# $LOCKSTEP_TEST_VENV or ~/.cache/lockstep-test for later runs. Skipped where packages cannot be installed within some
# minutes.
# ctest: timeout 600
set -u
: "${LOCKSTEP:?the command}" "${SOURCE_DIR:?the tree}" "${BUILD_DIR:?the build}" "${CC:=cc}"
cache=${LOCKSTEP_TEST_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep-test}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
skip() { echo "skipped: $*"; exit 77; }

# ---- Python ----

pip() {
    timeout "$1" "$python" -m pip --disable-pip-version-check --quiet install --timeout 15 --retries 1 "${@:2}" \
        >> "$work/pip.log" 2>&1
}
pip_failed() { tail -3 "$work/pip.log" >&2; skip "$*"; }

# Without its dependencies, several gigabytes of libraries for GPUs, and so one that was built without them: on arm64
# those up to 2.8, elsewhere where pip's configuration names wheels for CPUs, which is found out before anything large
# is downloaded.
torch=torch
case $(uname -m) in aarch64 | arm64) torch='torch<2.9' ;; esac
finds_torch() {
    [ "$torch" = torch ] || return 0
    pip 60 --dry-run --no-deps --ignore-installed --report "$work/torch.json" torch &&
        grep -q '"version": *"[^"]*+cpu' "$work/torch.json"
}
install_torch() { pip 240 --no-deps "$torch" && "$python" -c 'import torch' 2>> "$work/pip.log"; }
no_torch="no torch for CPUs could be installed; name its wheels in PIP_EXTRA_INDEX_URL, \
or a Python that has torch and transformers in LOCKSTEP_TEST_PYTHON"

install_packages() {
    rm -rf "$cache/new" "$cache/python"
    python3 -m venv "$cache/new" > "$work/pip.log" 2>&1 || pip_failed "python3 cannot make a virtual environment"
    python=$cache/new/bin/python
    pip 40 typing-extensions || pip_failed "Python packages are not reachable"
    finds_torch || pip_failed "$no_torch"
    pip 120 numpy filelock fsspec jinja2 networkx setuptools sympy safetensors tokenizers transformers ||
        pip_failed "transformers could not be installed"
    install_torch || pip_failed "$no_torch"
    # Version 4 and what it needs in older versions, in a folder of their own; without it the other checks are still
    # made.
    pip 120 --no-deps --target "$cache/new/version4" 'transformers<5' 'huggingface-hub<1' 'tokenizers<0.23' &&
        pip 60 requests || rm -rf "$cache/new/version4"
    mv "$cache/new" "$cache/python"
}

has_packages() { "$1" -c 'import torch, transformers' 2> /dev/null; }
use_environment() {
    mkdir -p "$cache" 2> /dev/null && exec 9> "$cache/lock" || skip "$cache cannot be written"
    flock -w 300 9 || skip "another run installs packages into $cache"
    has_packages "$cache/python/bin/python" || install_packages
    python=$cache/python/bin/python
    flock -u 9
}
python=${LOCKSTEP_TEST_PYTHON:-python3}
has_packages "$python" || use_environment

# ---- the program of this side ----

sanitize=${LK_SANITIZE:+-fsanitize=$LK_SANITIZE}
# shellcheck disable=SC2086 # it may be empty
"$CC" -std=gnu11 -Wall -Wextra -Werror $sanitize -I"$SOURCE_DIR/include" "$SOURCE_DIR/test/train/hf_model.c" \
    -L"$BUILD_DIR" -llockstep -lm -Wl,-rpath,"$BUILD_DIR" \
    -o "$work/hf_model" || exit 1

failed=0
for version in 5 4; do
    mkdir "$work/$version"
    path=
    if [ $version = 4 ]; then
        path=$cache/python/version4
        PYTHONPATH=$path "$python" -c 'import transformers' 2> "$work/pip.log" ||
            { tail -1 "$work/pip.log"; echo "skip: version 4 of transformers"; continue; }
    fi
    (cd "$work/$version" && PYTHONPATH=$path HF_HUB_OFFLINE=1 timeout 240 "$python" \
        "$SOURCE_DIR/test/train/interop.py" "$work/hf_model" "$LOCKSTEP") || failed=1
    [ -n "${LK_SANITIZE:-}" ] || PYTHONPATH=$path timeout 120 "$python" "$SOURCE_DIR/test/data/interop_tokenizers.py" \
        "$BUILD_DIR/liblockstep.so" --quick || failed=1
done
exit $failed
