#!/usr/bin/env bash
# extending.sh - every line of code that docs/extending.md quotes is in the tree.
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/..}" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
squeeze() { sed 's/\\$//; s/[[:space:]][[:space:]]*/ /g; s/^ //; s/ $//'; } # blanks and continued lines do not count

cat src/base/op.h src/graph/build.c src/graph/op/*.c src/device/cpu/*.c include/lockstep/graph.h test/test_golden_ops.c \
    test/golden/make_ops.py | squeeze > "$work/tree"
awk '/^```(c|python)$/ { inside = 1; next } /^```/ { inside = 0 } inside' docs/extending.md | squeeze | grep -v '^[{}]*$' > "$work/quoted"
[ "$(wc -l < "$work/quoted")" -gt 30 ] || { echo "docs/extending.md could not be parsed" >&2; exit 1; }
status=0
while IFS= read -r line; do
    grep -qxF -- "$line" "$work/tree" || { echo "docs/extending.md quotes what is not in the tree: $line" >&2; status=1; }
done < "$work/quoted"
exit $status
