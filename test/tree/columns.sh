#!/usr/bin/env bash
# columns.sh - lines have at most 120 columns (cmake/wrap.py --check; tables are exempt).
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
enabled=0 # 1 once the whole tree was wrapped
[ $enabled = 1 ] || { echo "skipped: the tree has not been wrapped yet"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: there is no python3"; exit 77; }
python3 cmake/wrap.py --check
