#!/usr/bin/env bash
# op_attributes.sh - there are at most as many attributes as bits of a set that LK__NO_ATTRIBUTES leaves: the last one
# is accepted, one more is a compile-time error. The schema is that of base/op.h, with attributes added to it.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/base"

# compile COUNT FILE…: with a schema of COUNT attributes.
compile() {
    awk -v count="$1" '
        /^#define LK__ATTR_LIST\(X\)/ { inside = 1; print; next }
        inside && /^    X\(/ { have++ }
        inside && !/\\$/ {
            inside = 0
            printf "%s", $0
            for (; have < count; have++) printf " X(real, added%d)", have
            print ""
            next
        }
        { print }' "$SOURCE_DIR/src/base/op.h" > "$work/base/op.h"
    shift
    "${CC:-cc}" -std=gnu11 -fsyntax-only -I "$work" -I "$SOURCE_DIR/include" -I "$SOURCE_DIR/src" "$@" 2> "$work/errors"
}
printf '%s\n' '#include "graph/op.h"' '_Static_assert(LK__ATTR_COUNT == 127, "they were not added");' \
    '_Static_assert(LK__NO_ATTRIBUTES >> 126 != 1, "the last attribute is none");' > "$work/last.c"
show_errors() { echo "$1:" >&2; cat "$work/errors" >&2; exit 1; }
compile 127 "$SOURCE_DIR/src/base/op.c" "$work/last.c" || show_errors "127 attributes do not compile"
! compile 128 "$SOURCE_DIR/src/base/op.c" ||
    show_errors "attribute 128 has the bit of LK__NO_ATTRIBUTES, and it compiles"
grep -q 'of a set of attributes' "$work/errors" || show_errors "128 attributes fail for another reason"
