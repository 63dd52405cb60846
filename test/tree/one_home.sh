#!/usr/bin/env bash
# one_home.sh - facts that the library has in a table are not repeated in the command: it names no data format of files. (What it compares by
# name are the two synthetic sets, whose sizes its options set.)
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
bad=0
complain() { echo "$*" >&2; bad=1; }

formats=$(sed -n 's/^ *X(\([a-z0-9_]*\)).*/\1/p' src/data/format.h | tr _ -)
[ "$(wc -w <<<"$formats")" -ge 14 ] || complain "src/data/format.h: the list of formats was not found"
for format in $formats; do
    case $format in synthetic | synthetic-tokens) continue ;; esac
    while read -r line; do
        complain "$line: names the data format $format: ask its descriptor (lockstep/data_format.h)"
    done < <(grep -nE "\"$format:[^ ]*\"" cli/*.c cli/*.h)
done

exit $bad
