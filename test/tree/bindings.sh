#!/usr/bin/env bash
# bindings.sh - the Python program of docs/bindings.md prints what the page says.
set -eu
[ -z "${LK_SANITIZE:-}" ] || { echo "skipped: python3 does not have the sanitizer"; exit 77; }
command -v python3 > /dev/null || { echo "skipped: there is no python3"; exit 77; }
python3 -c 'import ctypes' 2> /dev/null || { echo "skipped: this python3 has no ctypes"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
page=$SOURCE_DIR/docs/bindings.md
awk '/^```python$/ { inside = 1; next } /^```/ { inside = 0 } inside' "$page" > "$work/line.py"
awk '/^\$ python3 line.py$/ { inside = 1; next } /^```/ { inside = 0 } inside' "$page" > "$work/expected"
lines=$(grep -c . "$work/line.py")
[ "$lines" -gt 30 ] && [ "$lines" -le 45 ] && [ -s "$work/expected" ] ||
    { echo "docs/bindings.md: $lines lines of Python, not about 40" >&2; exit 1; }
LD_LIBRARY_PATH=$BUILD_DIR LOCKSTEP_DEVICE='' python3 "$work/line.py" > "$work/printed"
diff "$work/expected" "$work/printed"
# Its errors are the library's.
sed 's/b"fc.weight", b"fc.bias"/b"fc.weights",/' "$work/line.py" > "$work/wrong.py"
if LD_LIBRARY_PATH=$BUILD_DIR python3 "$work/wrong.py" > "$work/printed" 2>&1; then echo "a wrong name was accepted" \
    >&2; exit 1; fi
grep -q 'RuntimeError: .*fc.weights' "$work/printed" || { cat "$work/printed" >&2; exit 1; }
