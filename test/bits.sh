#!/usr/bin/env bash
# bits.sh - the weights after 30 steps have the bits that they had at the commit which golden/bits.txt names, for every model,
# number of ranks and backend. The table is keyed by instruction set and compiler; for a key that it does not have, that
# commit is built and run beside this one. `bits.sh --table` prints the lines for the command in $LOCKSTEP.
# ctest: timeout 900
set -u
: "${LOCKSTEP:?the command}" "${SOURCE_DIR:?the tree}" "${CC:=cc}"
table=$SOURCE_DIR/test/golden/bits.txt
"$LOCKSTEP" info | grep -q '^compiler .*, Release$' && [ -z "${LK_SANITIZE:-}" ] || { echo "skipped: bits are those of a Release build"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() { echo "FAIL $*" >&2; failed=1; }

# "neon gcc 12": what decides the bits of a build
key=$("$LOCKSTEP" info | awk '/^compiler/ { split($3, version, "."); compiler = $2 " " version[1] }
                              /^instruction sets/ { for (i = 3; i <= NF; i++) if ($(i + 1) == "(in") isa = $i }
                              END { print isa, compiler }')
cases=()
for model in mlp cnn resnet20 "resnet20 --sync-batchnorm"; do
    for ranks in "-n 1" "-n 2 --backend shm" "-n 2 --backend tcp" "-n 3 --backend shm" "-n 3 --backend tcp"; do
        cases+=("$model $ranks" "$model $ranks --reproducible")
    done
done

# hash_of COMMAND CASE: the hash of the weights, or nothing
hash_of() {
    local data=synthetic:3x16x16,count=200
    case $2 in mlp*) data=synthetic ;; esac
    # shellcheck disable=SC2086 # a case is a list of words
    "$1" train --model $2 --data $data --batch 24 --steps 30 --threads 1 --eval-every -1 --json 2>"$work/err" |
        sed -n 's/.*"hash": *"\([0-9a-f]*\)".*/\1/p'
}

if [ "${1:-}" = --table ]; then
    for one in "${cases[@]}"; do printf '%s\t%s\t%s\n' "$key" "$one" "$(hash_of "$LOCKSTEP" "$one")"; done
    exit 0
fi

commit=$(sed -n 's/^# commit //p' "$table")
build_reference() {
    git -C "$SOURCE_DIR" cat-file -e "$commit^{commit}" 2>/dev/null || { echo "skipped: no bits for $key in golden/bits.txt, and commit $commit is not in this clone"; exit 77; }
    mkdir "$work/tree"
    git -C "$SOURCE_DIR" archive "$commit" | tar -x -C "$work/tree" &&
        cmake -S "$work/tree" -B "$work/build" -DLK_TESTS=OFF -DCMAKE_C_COMPILER="$CC" >"$work/log" 2>&1 &&
        cmake --build "$work/build" -j "$(nproc)" --target lockstep_command >>"$work/log" 2>&1 || { tail -20 "$work/log" >&2; fail "commit $commit does not build"; exit 1; }
}

if grep -q "^$key	" "$table"; then
    wanted() { sed -n "s/^$key	$1	//p" "$table"; }
else
    echo "no bits for $key in golden/bits.txt: building commit $commit to compare with"
    build_reference
    wanted() { hash_of "$work/build/lockstep" "$1"; }
fi

for one in "${cases[@]}"; do
    want=$(wanted "$one") got=$(hash_of "$LOCKSTEP" "$one")
    [ -n "$want" ] || fail "$one: no bits to compare with"
    [ "$got" = "$want" ] || fail "$one: ${got:-nothing: $(tail -2 "$work/err")}, at commit ${commit:0:7} $want"
done
[ $failed = 0 ] && echo "${#cases[@]} cases have the bits of commit ${commit:0:7} ($key)"
exit $failed
