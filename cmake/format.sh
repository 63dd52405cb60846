#!/usr/bin/env bash
# format.sh [--fix] [FILE...] - clang-format of all sources, or of those given, except for macros, which stay as
# written: versions of clang-format format them differently, and tables in macros are aligned by hand. Without --fix,
# prints which files differ and exits 1. Blanks before a comment at the end of a line are not compared, because versions
# differ there too.
set -eu
fix=0
[ "${1:-}" = --fix ] && { fix=1; shift; }
if [ $# = 0 ]; then # all; headers of earlier versions stay as they are
    cd "$(dirname "$0")/.."
    [ $fix = 0 ] || set -- --fix
    find src include cli test bench examples -path 'test/headers/[0-9]*' -prune -o \( -name '*.[ch]' -o -name '*.cpp' \
        \) -print | sort |
        xargs -P "$(nproc 2> /dev/null || echo 2)" -n 50 cmake/format.sh "$@"
    exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
for file; do
    clang-format --style=file "$file" > "$work/out"
    awk '
        function is_define(line) { return line ~ /^[ \t]*#[ \t]*define/ }
        function is_continued(line) { return line ~ /\\$/ }
        FNR == NR {
            if (!inside && is_define($0)) { inside = 1; count++ }
            if (inside) { kept[count] = kept[count] $0 "\n"; inside = is_continued($0) }
            next
        }
        !inside && is_define($0) { inside = 1; printf "%s", kept[++seen] }
        inside { inside = is_continued($0); next }
        { print }' "$file" "$work/out" > "$work/new"
    for side in "$file" "$work/new"; do
        sed 's,  *\(/[*/].*\)$, \1,' "$side" > "$work/squeezed.$([ "$side" = "$file" ] && echo old || echo new)"
    done
    cmp -s "$work/squeezed.old" "$work/squeezed.new" && continue
    if [ $fix = 1 ]; then
        cat "$work/new" > "$file"
        echo "formatted $file"
    else
        diff -u --label "$file" --label "$file (formatted)" "$work/squeezed.old" "$work/squeezed.new" | head -20 || true
        bad=1
    fi
done
exit $bad
