#!/usr/bin/env bash
# run.sh [NAME…] - NAME.patch in this folder adds one more of its kind (an operation, an optimizer, …), as
# docs/extending.md describes. For each patch, or each NAME, in a copy of this tree:
#   1. its test fails without the patch;
#   2. with it, no more existing files, and lines in them, have changed than its head allows. New files are not counted,
#      and a line that is replaced counts once;
#   3. the copy builds, and its test passes.
# It is run by hand and before releases, not by the suite: it builds the tree once, and what a patch changes.
#
# The head of a patch, before its first diff:
#   # files: 3                    how many existing files it may change
#   # lines: 40                   how many lines in them, 40 if not set
#   # build: test_one cuda_emulated   targets beside the command, optional
#   # test: COMMAND               run in the copy by bash -e, with LOCKSTEP, SOURCE_DIR and BUILD_DIR set
#
# The copy and its build stay in build-extend, so that the next run builds only what has changed. EXTEND_CMAKE has
# further arguments of cmake. run.sh --count NAME… checks heads and counts only.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
copy=$source/build-extend/tree
log=$source/build-extend/log
count_only=0
if [ "${1:-}" = --count ]; then count_only=1; shift; fi

fail() { echo "  $*" >&2; return 1; }
in_copy() {
    git -C "$copy" -c user.name=extend -c user.email=extend@localhost -c core.autocrlf=false -c commit.gpgsign=false \
        "$@"
}

# The files of the working tree, tracked or not, without what is ignored.
list_files() {
    local file
    (cd "$source" && git ls-files -co --exclude-standard |
        while IFS= read -r file; do [ ! -f "$file" ] || printf '%s\n' "$file"; done | sort)
}

# Makes the copy what the working tree is. Files that are the same keep their times, so that they are not built again.
copy_tree() {
    local file
    mkdir -p "$copy"
    [ -d "$copy/.git" ] || in_copy init -q
    list_files > "$log.files"
    (cd "$copy" && find . -path ./.git -prune -o -path ./build -prune -o -type f -print | sed 's|^\./||' | sort |
        comm -23 - "$log.files" | tr '\n' '\0' | xargs -0 -r rm -f)
    while IFS= read -r file; do
        if ! cmp -s "$source/$file" "$copy/$file"; then
            mkdir -p "$(dirname "$copy/$file")"
            rm -f "$copy/$file"
            cp "$source/$file" "$copy/$file" # not its time: an object of a patched file may be newer
            [ ! -x "$source/$file" ] || chmod +x "$copy/$file"
        fi
    done < "$log.files"
    in_copy add -A
    in_copy commit -q --allow-empty -m base
}
reset_copy() { in_copy reset -q --hard && in_copy clean -fdq; }

head_of() { sed '/^diff --git /,$d' "$here/$1.patch" | sed -n "s/^# $2: *//p"; } # head_of NAME KEY
build() { # build TARGET…
    # shellcheck disable=SC2086 # words
    (cd "$copy" && cmake --preset release ${generator:+-G "$generator"} -DLK_WERROR=ON ${EXTEND_CMAKE:-} &&
        cmake --build build -j "$(nproc)" --target lockstep_command "$@") \
        > "$log.build" 2>&1
}
run_test() {
    (
        cd "$copy"
        export LOCKSTEP=$copy/build/lockstep SOURCE_DIR=$copy BUILD_DIR=$copy/build LOCKSTEP_DEVICE=cpu
        timeout 300 bash -ec "$1"
    ) > "$log.test" 2>&1 < /dev/null
}

# check_count FILES LINES: what the applied patch changed in files that were there.
check_count() {
    local files lines
    files=$(in_copy diff --no-renames --diff-filter=a --name-only HEAD | wc -l)
    lines=$(in_copy diff --no-renames --diff-filter=a -U0 HEAD | awk '/^@@ / {
        removed = $2; added = $3
        removed = removed ~ /,/ ? substr(removed, index(removed, ",") + 1) : 1
        added = added ~ /,/ ? substr(added, index(added, ",") + 1) : 1
        lines += removed + 0 > added + 0 ? removed : added } END { print lines + 0 }')
    echo "  changes $lines lines of $files existing files (allowed: $2 of $1)"
    if [ "$files" -gt "$1" ] || [ "$lines" -gt "$2" ]; then
        in_copy diff --no-renames --diff-filter=a --stat HEAD >&2
        fail "more than its head allows"
    fi
}

check_patch() {
    local files lines targets test
    files=$(head_of "$1" files) lines=$(head_of "$1" lines) targets=$(head_of "$1" build) test=$(head_of "$1" test)
    [[ $files =~ ^[0-9]+$ && ${lines:=40} =~ ^[0-9]+$ &&
        -n $test ]] || fail "its head needs '# files: N' and '# test: COMMAND' before the first diff" || return
    case $passed_without in *" $1 "*) fail "its test passes without the patch: $test" || return ;; esac
    in_copy apply --index "$here/$1.patch" || fail "does not apply" || return
    check_count "$files" "$lines" || return
    [ $count_only = 0 ] || return 0
    # shellcheck disable=SC2086 # words
    if ! build $targets; then
        grep -E -A8 'error|Error' "$log.build" | head -40 >&2 || tail -20 "$log.build" >&2
        fail "does not build" || return
    fi
    run_test "$test" || { tail -20 "$log.test" >&2; fail "its test fails: $test"; } || return
    echo "  its test passes, and fails without the patch"
}

[ $# -gt 0 ] || { cd "$here" && set -- *.patch; }
[ "$1" != '*.patch' ] || { echo "no patches in $here" >&2; exit 1; }
mkdir -p "$source/build-extend"
generator=
if [ ! -f "$copy/build/CMakeCache.txt" ] && command -v ninja > /dev/null; then generator=Ninja; fi
export CCACHE_BASEDIR=$copy CCACHE_NOHASHDIR=1 # copies of different trees share what they compiled
echo "Copying the tree"
copy_tree
reset_copy
if [ $count_only = 0 ]; then
    echo "Building it without patches"
    build || { tail -20 "$log.build" >&2; exit 1; }
    generator=
fi
status=0 passed_without=' '
for name; do # before any patch is built
    name=$(basename "${name%.patch}")
    [ -f "$here/$name.patch" ] || { echo "there is no $here/$name.patch" >&2; exit 2; }
    if [ $count_only = 0 ] && run_test "$(head_of "$name" test)"; then passed_without+="$name "; fi
done
for name; do
    name=$(basename "${name%.patch}")
    echo "$name"
    check_patch "$name" || { status=1; echo "  FAILED"; }
    reset_copy
done
exit $status
