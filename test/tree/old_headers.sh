#!/usr/bin/env bash
# old_headers.sh - a program that was compiled with the headers of an earlier version (test/headers/VERSION, stored by
# `./x headers` at each release) runs with this library, as far as both have the same soname.
set -eu
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: the program would need the sanitizer's flags"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
soname=$(readelf -d "$BUILD_DIR/liblockstep.so" | sed -n 's/.*soname: \[liblockstep\.so\.\(.*\)\]/\1/p')
tried=0
for headers in "$SOURCE_DIR"/test/headers/*/; do
    version=$(basename "$headers")
    case $version. in "$soname".*) ;; *) continue ;; esac
    "$CC" -std=gnu11 -Wall -Wextra -Werror -I "$headers" "$SOURCE_DIR/test/headers/program.c" -o "$work/program" -L \
        "$BUILD_DIR" -llockstep -lm
    LD_LIBRARY_PATH=$BUILD_DIR "$work/program" || { echo "a program with the headers of $version fails" >&2; exit 1; }
    tried=$((tried + 1))
done
[ $tried -gt 0 ] || { echo "no headers of $soname are stored: run ./x headers" >&2; exit 1; }
