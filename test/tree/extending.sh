#!/usr/bin/env bash
# extending.sh - every line of code that docs/extending.md and docs/operations.md quote is in the tree.
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
squeeze() { sed 's/\\$//; s/[[:space:]][[:space:]]*/ /g; s/^ //; s/ $//'; } # blanks and continued lines do not count

cat src/base/op.h src/base/function.h src/device/functions.h src/device/cpu.c src/graph/build*.c src/graph/losses.c \
    src/graph/op/*.c src/device/cpu/*.c src/device/cuda/*.cu src/base/dtype_list.h include/lockstep/plan.h \
    src/data/format.h src/data/csv/csv.c src/base/collective.h src/comm/transports.h src/comm/net/tcp.c \
    src/device/devices.h include/lockstep/graph.h include/lockstep/optimizer.h include/lockstep/trainer.h \
    test/graph/test_golden_ops.c test/golden/make_ops.py | squeeze > "$work/tree"
cat examples/own_operation.c examples/model_so.c | squeeze > "$work/examples"
status=0
# check_page PAGE LINES FILE: PAGE quotes more than LINES lines of code, all of which are in FILE.
check_page() {
    awk '/^```(c|python)$/ { inside = 1; next } /^```/ { inside = 0 } inside' "docs/$1" | squeeze |
        grep -v '^[{}]*$' > "$work/quoted"
    [ "$(wc -l < "$work/quoted")" -gt "$2" ] || { echo "docs/$1 could not be parsed" >&2; exit 1; }
    while IFS= read -r line; do
        grep -qxF -- "$line" "$3" || { echo "docs/$1 quotes what is not in the tree: $line" >&2; status=1; }
    done < "$work/quoted"
}
check_page extending.md 30 "$work/tree"
check_page operations.md 10 "$work/examples"
exit $status
