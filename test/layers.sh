#!/usr/bin/env bash
# layers.sh - each folder of src includes only itself, the folders above it in the list, and public headers; cli and examples
# include no folder of src at all; public headers include public headers alone.
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/..}" || exit 1
layers="base device kernel graph comm plan run nn data train launch"
bad=0
complain() { echo "$*" >&2; bad=1; }

includes() { grep -rnoE --include='*.[ch]' --include='*.cu' '^[[:space:]]*#[[:space:]]*include[[:space:]]*"[^"]*"' "$@" 2>/dev/null; }
place() { local i=0 layer; for layer in $layers; do i=$((i + 1)); [ "$layer" = "$1" ] && echo $i; done; }

for folder in src/*/; do
    layer=$(basename "$folder")
    own=$(place "$layer")
    [ -n "$own" ] || { complain "$folder is in no layer: add it to the list in test/layers.sh and to the design"; continue; }
    while IFS=: read -r file line text; do
        [ -n "$file" ] || continue
        path=${text#*\"} path=${path%\"}
        case $path in
        lockstep*) continue ;;
        */*) other=${path%%/*} ;;
        *) complain "$file:$line: \"$path\" should be written from src/, as \"$layer/$path\""; continue ;;
        esac
        at=$(place "$other")
        if [ -z "$at" ]; then complain "$file:$line: \"$path\" is in no layer"
        elif [ "$at" -gt "$own" ]; then complain "$file:$line: $layer includes \"$path\", but $other stands below it"
        elif [ ! -e "src/$path" ]; then complain "$file:$line: src/$path does not exist"; fi
    done < <(includes "$folder")
done

while IFS=: read -r file line text; do
    [ -n "$file" ] || continue
    path=${text#*\"} path=${path%\"}
    [ -e "$(dirname "$file")/$path" ] || complain "$file:$line: \"$path\": only public headers (<lockstep/...>) and its own folder"
done < <(includes cli examples)

while IFS=: read -r file line text; do
    [ -n "$file" ] && complain "$file:$line: ${text}: a public header includes <lockstep/...> or the standard library's"
done < <(includes include)

while IFS=: read -r file line text; do
    [ -n "$file" ] || continue
    header=${text#*<} header=${header%>*}
    case $header in
    lockstep*) [ -e "include/$header" ] || complain "$file:$line: include/$header does not exist" ;;
    stdbool.h | stddef.h | stdint.h) ;;
    *) complain "$file:$line: <$header> in a public header" ;;
    esac
done < <(grep -rnoE '^[[:space:]]*#[[:space:]]*include[[:space:]]*<[^>]*>' include)

exit $bad
