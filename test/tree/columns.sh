#!/usr/bin/env bash
# columns.sh - lines have at most 120 columns (cmake/wrap.py --check; tables are exempt). Those that were longer before
# this was checked are counted below; the number only falls, and is 0 once the whole tree has been wrapped.
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
command -v python3 > /dev/null || { echo "skipped: there is no python3"; exit 77; }
most=4344
found=$(python3 cmake/wrap.py --check | grep -c 'more than 120 columns')
[ "$found" -le $most ] && exit 0
echo "$found lines have more than 120 columns, at most $most are allowed: see python3 cmake/wrap.py --check" >&2
exit 1
