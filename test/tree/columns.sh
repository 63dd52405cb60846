#!/usr/bin/env bash
# columns.sh - lines have at most 120 columns (cmake/wrap.py --check; tables are exempt).
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
command -v python3 > /dev/null || { echo "skipped: there is no python3"; exit 77; }
exec python3 cmake/wrap.py --check
