#!/usr/bin/env bash
# layers.sh - each folder of src includes only itself, the folders above it in the list, and public headers; src/nn, cli
# and examples include no folder of src at all; src/train reaches into src/run through two interfaces and the store;
# public headers include public headers alone. Internal types name their layer. What a file declares without including
# its header counts as included.
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
layers="base device graph comm plan run nn data train launch"
bad=0
complain() { echo "$*" >&2; bad=1; }

directive='^[[:space:]]*#[[:space:]]*include[[:space:]]*'
includes() { grep -rnoE --include='*.[ch]' --include='*.cu' "$directive\"[^\"]*\"" "$@" 2>/dev/null; }
place() { local i=0 layer; for layer in $layers; do i=$((i + 1)); [ "$layer" = "$1" ] && echo $i; done; }

for folder in src/*/; do
    layer=$(basename "$folder")
    own=$(place "$layer")
    [ -n "$own" ] ||
        { complain "$folder is in no layer: add it to the list in test/tree/layers.sh and to the design"; continue; }
    while IFS=: read -r file line text; do
        [ -n "$file" ] || continue
        path=${text#*\"} path=${path%\"}
        case $path in
        lockstep*) continue ;;
        */*) other=${path%%/*} ;;
        *) complain "$file:$line: \"$path\" should be written from src/, as \"$layer/$path\""; continue ;;
        esac
        at=$(place "$other")
        if [ -z "$at" ]; then
            complain "$file:$line: \"$path\" is in no layer"
        elif [ "$at" -gt "$own" ]; then
            complain "$file:$line: $layer includes \"$path\", but $other is a layer below it"
        elif [ ! -e "src/$path" ]; then
            complain "$file:$line: src/$path does not exist"
        fi
    done < <(includes "$folder")
done

# A declaration reaches as far as an include: what a folder declares is defined in it or above it, and a source file
# declares nothing that another folder defines. Lines "declared|defined FOLDER FILE:LINE NAME", of functions and of
# objects that are not static.
names() {
    find src \( -name '*.c' -o -name '*.h' \) -exec awk '
        function flush_statement(kind,    s, name, at) {
            s = statement; statement = ""
            if (s ~ /^[ \t]*(static|typedef|struct [a-z_0-9]+ *$|enum|union)/ || s !~ /lk__/) return
            if (kind == "declared" && s ~ /^[ \t]*extern/ && s !~ /\(/) { # objects: every name behind the type
                at = match(s, /lk__[a-z0-9_]+[ *]+lk__/); if (at) s = substr(s, at + RLENGTH - 4)
                while (match(s, /lk__[a-z0-9_]+/)) {
                    print kind, folder, where, substr(s, RSTART, RLENGTH); s = substr(s, RSTART + RLENGTH) }
                return
            }
            if (match(s, /lk__[a-z0-9_]+ *\(/)) {
                name = substr(s, RSTART, RLENGTH); sub(/ *\($/, "", name); print kind, folder, where, name; return }
            if (kind == "defined" && match(s, /lk__[a-z0-9_]+(\[[^]]*\])* *=/)) {
                name = substr(s, RSTART, RLENGTH); sub(/[[ =].*/, "", name); print kind, folder, where, name }
        }
        FNR == 1 { depth = 0; statement = ""; comment = define = 0; split(FILENAME, part, "/"); folder = part[2] }
        define || /^[ \t]*#/ { define = /\\$/; next }
        {
            line = $0
            if (comment) { if (!sub(/^.*\*\//, "", line)) next; comment = 0 }
            gsub(/\/\*([^*]|\*+[^*\/])*\*+\//, "", line)
            if (sub(/\/\*.*/, "", line)) comment = 1
            gsub(/"([^"\\]|\\.)*"/, "0", line); gsub(/\47([^\47\\]|\\.)*\47/, "0", line)
            for (i = 1; i <= length(line); i++) {
                c = substr(line, i, 1)
                if (c == "{") { if (depth++ == 0) flush_statement("defined") }
                else if (c == "}") { depth--; statement = "" }
                else if (depth == 0 && c == ";") flush_statement("declared")
                else if (depth == 0) {
                    if (statement == "" && c != " ") where = FILENAME ":" FNR
                    statement = statement c }
            }
            if (statement != "") statement = statement " "
        }' {} +
}
while read -r at folder name definer; do
    if [ "$(place "$definer")" -gt "$(place "$folder")" ]; then
        complain "$at: $folder declares $name, which $definer defines, a layer below it"
    else
        complain "$at: $name is declared here and defined in src/$definer: include its header"
    fi
done < <(for layer in $layers; do echo "layer $layer $(place "$layer")"; done | cat - <(names) | awk '
    $1 == "layer" { rank[$2] = $3; next }
    $1 == "defined" { definer[$4] = $2; next }
    { at[++n] = $3; folder[n] = $2; name[n] = $4 }
    END { for (i = 1; i <= n; i++) {
        d = definer[name[i]]
        if (d != "" && d != folder[i] && (rank[d] > rank[folder[i]] || at[i] ~ /\.c:/))
            print at[i], folder[i], name[i], d } }')

# The trainer and the generator use a program through its public calls and an interface each; what is saved and loaded
# is the store.
allowed="trainer_interface.h, generator_interface.h, store.h and exchange.h"
while IFS=: read -r file line text; do
    [ -n "$file" ] || continue
    path=${text#*\"} path=${path%\"}
    case $path in
    run/trainer_interface.h | run/generator_interface.h | run/store.h | run/exchange.h) ;;
    run/*) complain "$file:$line: src/train uses of src/run only $allowed, not \"$path\"" ;;
    esac
done < <(includes src/train)

# src/nn, cli and examples use public headers alone: they could be outside of this tree.
while IFS=: read -r file line text; do
    [ -n "$file" ] || continue
    path=${text#*\"} path=${path%\"}
    case $file:$path in src/nn/*:nn/*) continue ;; esac
    [ -e "$(dirname "$file")/$path" ] ||
        complain "$file:$line: \"$path\": only public headers (<lockstep/...>) and its own folder"
done < <(includes src/nn cli examples)

# Angle brackets are for installed headers: none may include a folder of src.
while IFS=: read -r file line text; do
    [ -n "$file" ] || continue
    header=${text#*<} header=${header%>*}
    [ -e "src/$header" ] && complain "$file:$line: <$header>: a header of src is included as \"$header\""
    case $header in
    lockstep*) [ -e "include/$header" ] || complain "$file:$line: include/$header does not exist" ;;
    esac
done < <(grep -rnoE --include='*.[ch]' --include='*.cu' --include='*.cpp' "$directive<[^>]*>" \
    src cli examples test bench)

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
done < <(grep -rnoE "$directive<[^>]*>" include)

# Internal types carry their layer, the folder within it, or their header; base is exempt. None exists twice.
types() {
    local at='^src\/([^:]*):[0-9]+:'
    grep -rnE '^(typedef )?(struct|enum|union) lk__[a-z0-9_]+( \{|;| lk__)|^typedef .*\(\*lk__[a-z0-9_]+\)' src \
        --include='*.h' |
        sed -E -e "s/${at}typedef .*\(\*(lk__[a-z0-9_]+)\).*/\1 \2 defined/" \
            -e "s/${at}(typedef )?(struct|enum|union) (lk__[a-z0-9_]+) \{.*/\1 \4 defined/" \
            -e "s/${at}(typedef )?(struct|enum|union) (lk__[a-z0-9_]+).*/\1 \4 declared/"
}
while read -r file name; do
    complain "src/$file: $name carries neither its layer nor its folder nor its header in its name"
done < <(types | awk '$3 == "defined" {
    n = split($1, part, "/"); good = part[1] == "base"; stem = part[n]; sub(/[_.].*/, "", stem)
    for (i = 1; i < n; i++) good = good || index($2, "lk__" part[i]) == 1
    if (!good && index($2, "lk__" stem) != 1) print $1, $2 }')
while read -r name; do complain "$name is defined more than once"; done < \
    <(types | awk '$3 == "defined" { print $2 }' | sort | uniq -d)

# What a program does is decided where instructions are made (src/plan/instruction.c, schedule.c) and where programs are
# created. The executor, which is the rest of src/run, asks neither whether state is shared or leaves exist nor which
# device it is. The store's files are not part of it.
created='create|collective_create|leaf_batch_create|staging_create|shared|regions|broadcast|verify|choices'
asks='plan->shared\>|parallel(\.|->)leaves|batch_leaves|lk__plan_(by_slices|sums_late|own_leaves)'
asks+='|lk__device_is_host|backend->host\>|lk__store_shares|lk__comm_reaches|[!(&|?] ?p->shared( |\)|;)'
while IFS=: read -r file line text; do
    [ -n "$file" ] || continue
    complain "$file:$line: the executor asks what an instruction or a fact of the program should say:$text"
done < <(grep -nE "$asks" src/run/*.c src/run/program.h src/run/interpreter.h |
    grep -vE "^src/run/(($created)|store[a-z_]*|slice|exchange)\.c:")

# Plans and programs ask their mesh for extents and coordinates of axes; lk_parallel's world and rank are its short
# form.
while IFS=: read -r file line text; do
    [ -n "$file" ] && complain \
        "$file:$line: only src/plan/mesh.c reads lk_parallel's world and rank; ask the mesh (plan.h):$text"
done < <(grep -rnE 'parallel(\.|->)(world|rank)\>' src/plan src/run | grep -v '^src/plan/mesh\.c:')

exit $bad
