#!/usr/bin/env bash
# architecture.sh - docs/architecture.md names files that exist, and lists the passes of a plan in the order in which
# plan.c runs them.
set -u
cd "${SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
page=docs/architecture.md
bad=0
complain() { echo "$*" >&2; bad=1; }

# `file.c`, `run/step.c`, `test/tree/layers.sh`: below the root, below src, or anywhere where it has no folder.
files=$(find src include cli test cmake examples bench -type f)
while read -r name; do
    pattern=$(printf '%s' "$name" | sed 's/[.]/[.]/g; s/[*]/[^\/]*/g')
    grep -qE "(^|/)$pattern$" <<<"$files" || complain "$page names $name, which does not exist"
done < <(grep -oE '`[A-Za-z0-9_/*.-]+\.(c|h|cu|sh)`' $page | tr -d '`' | sort -u)

# The rows of the table, and the files of the calls in plan.c: those of training, from the first to the memory pass, and
# evaluation's own before them.
mapfile -t rows < <(sed -n '/^| pass | file |/,/^$/p' $page | tail -n +3 | awk -F'|' 'NF > 2 { print $3 }' | tr -d '`')
mapfile -t passes < <(echo evaluation; grep -oE 'lk__pass_[a-z_]+' src/plan/plan.c | sed 's/lk__pass_//; /^memory$/q')
at=0 used=' '
for pass in "${passes[@]}"; do
    file=$(basename "$(grep -lE "^(lk_status|void) lk__pass_$pass\(" src/plan/*.c)")
    while [ $at -lt ${#rows[@]} ]; do
        for pattern in ${rows[at]//,/ }; do
            # shellcheck disable=SC2053 # a pattern
            [[ $file == $pattern ]] && break 2
        done
        at=$((at + 1))
    done
    if [ $at = ${#rows[@]} ]; then
        complain "$page does not list the pass $pass ($file) where plan.c runs it"
        break
    fi
    used+="$at "
done
for ((i = 0; i < ${#rows[@]} && bad == 0; i++)); do
    case $used in *" $i "*) continue ;; esac
    case ${rows[i]} in *graph/grad.c*) ;; *) complain "$page lists ${rows[i]}, which plan.c does not run there" ;; esac
done
[ ${#rows[@]} -gt 10 ] || complain "$page has no table of passes"
[ $bad = 0 ] && echo ok
exit $bad
