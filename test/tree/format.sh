#!/usr/bin/env bash
# format.sh - C and C++ sources have the format of `./x format`. Skipped without clang-format.   ctest: timeout 300
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
command -v clang-format > /dev/null || { echo "skipped: there is no clang-format"; exit 77; }
cmake/format.sh
