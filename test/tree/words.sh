#!/usr/bin/env bash
# words.sh - no terms of our own where the field has one: the list is words.txt. Names, comments, messages and
# documentation. ctest: label quick
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
bad=0
while read -r most pattern instead; do
    case $most in '' | '#'*) continue ;; esac
    expression="(^|[^A-Za-z])(${pattern//_/[ _]})([^A-Za-z]|\$)"
    case $pattern in lk__* | LK__*) expression="\\b$pattern\\b" ;; esac
    found=$(grep -rnIE --include='*.[ch]' --include='*.cu' --include='*.cpp' --include='*.sh' --include='*.bash' \
        --include='*.py' --include='*.md' --include='*.cmake' --exclude-dir=golden --exclude-dir=headers \
        --exclude-dir=corpus --exclude="interop*.py" -- "$expression" \
        src include cli examples bench test cmake docs ./*.md)
    count=$(printf '%s' "$found" | grep -c '')
    [ "$count" -le "$most" ] && continue
    printf '%s\n' "$found"
    echo "$count lines have \"${pattern//_/ }\", at most $most may (test/tree/words.txt); say: $instead" >&2
    bad=1
done < test/tree/words.txt
exit $bad
