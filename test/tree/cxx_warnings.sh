#!/usr/bin/env bash
# cxx_warnings.sh - the headers give no warning in C++20 at -Wall -Wextra with any installed compiler when they are
# included by -I (warnings of system headers are not shown), and cxx_macros.cpp uses every macro.
set -eu
fail() { echo "$*" >&2; exit 1; }
for name in $(grep -rhoE '^#define (LK_[A-Z_]*INIT|lk_[a-z_0-9]+\()' "$SOURCE_DIR/include" | sed 's/#define //'); do
    grep -qF "$name" "$SOURCE_DIR/test/tree/cxx_macros.cpp" || fail "cxx_macros.cpp does not use $name"
done
tried=0
for compiler in ${CXX:-} g++ g++-12 g++-13 g++-14 clang++ clang++-14 clang++-16 clang++-18; do
    command -v "$compiler" > /dev/null || continue
    echo 'int main() {}' | "$compiler" -std=c++20 -x c++ -fsyntax-only - 2> /dev/null || continue
    for source in "$SOURCE_DIR"/test/tree/*.cpp; do
        "$compiler" -std=c++20 -Wall -Wextra -Werror -I "$SOURCE_DIR/include" -fsyntax-only "$source" ||
            fail "$compiler warns about $source"
    done
    tried=$((tried + 1))
done
[ $tried -gt 0 ] || { echo "skipped: no C++ compiler"; exit 77; }
