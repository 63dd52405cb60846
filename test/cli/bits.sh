#!/usr/bin/env bash
# bits.sh - trained weights, resumed ones and generated tokens have the bits that they had at the commit which
# golden/bits.txt names: every model, type, number of ranks, transport, and option that has bits. A digest is the
# SHA-256 of model.safetensors, or of what is generated. The table is keyed by instruction set and compiler; for a key
# that it does not have, that commit is built and run beside this one. A set that multiplies bf16 (neon_bf16, amx) has
# lines of its own where products are of bf16; all others are those of the set that it extends. `bits.sh --table` prints
# the lines for the command in $LOCKSTEP, `--table WORDS` those of cases with these words in them.
# ctest: timeout 900
set -u
: "${LOCKSTEP:?the command}" "${SOURCE_DIR:?the tree}" "${CC:=cc}"
table=$SOURCE_DIR/test/golden/bits.txt stored=$SOURCE_DIR/test/golden/resume
"$LOCKSTEP" info | grep -q '^compiler .*, Release$' && [ -z "${LK_SANITIZE:-}" ] ||
    { echo "skipped: bits are those of a Release build"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() { echo "FAIL $*" >&2; failed=1; }

# "neon gcc 12": what decides the bits of a build
key=$("$LOCKSTEP" info | awk '/^compiler/ { split($3, version, "."); compiler = $2 " " version[1] }
                              /^instruction sets/ { for (i = 3; i <= NF; i++) if ($(i + 1) == "(in") isa = $i }
                              END { print isa, compiler }')

extended=$key
case $key in
*_bf16' '*) extended=${key/_bf16/} ;;
amx' '*) extended=avx512${key#amx} ;;
esac

# ---- the cases: "train WORDS", "resume DIRECTORY WORDS" of golden/resume, "generate MODEL WORDS" of a model that is
# trained first ----

cases=()
for model in mlp cnn resnet20 "resnet20 --sync-batchnorm"; do
    for ranks in "-n 1" "-n 2 --backend shm" "-n 2 --backend tcp" "-n 3 --backend shm" "-n 3 --backend tcp"; do
        cases+=("train $model $ranks" "train $model $ranks --reproducible")
    done
    for more in "-n 4" "-n 2 --state replicated" "-n 2 --accumulate 2" "-n 2 --clip 0.1" \
        "-n 2 --clip 0.1 --state replicated" \
        "-n 2 --dtype bf16" "-n 3 --dtype bf16 --reproducible" "-n 2 --dtype f64" "-n 2 --gradient-dtype bf16"; do
        cases+=("train $model $more")
    done
done
cases+=("train resnet20 --recompute -n 1" "train resnet20 --sync-batchnorm --recompute -n 2 --reproducible"
    "train resnet18 --stem cifar -n 2"
    "train cnn -n 2 --crop-padding 2 --flip 0.5 --mixup 0.2 --cutout 4"
    "train cnn -n 2 --rotate 10 --color-jitter 0.2,0.2,0.2,0.1"
    "train mlp -n 2 --optimizer sgd --momentum 0.9 --nesterov --weight-decay 0.01"
    "train mlp -n 2 --optimizer adamw --weight-decay 0.1 --decay-all"
    "train mlp -n 2 --freeze fc1.* --group fc2.*:lr=3,decay=0.1"
    "train mlp -n 3 --classes 2 --loss bce --schedule cosine --warmup 5" "train mlp -n 2 --threads 2")
for model in gpt llama encoder; do
    for dtype in f32 bf16 f64; do
        for ranks in "-n 1" "-n 2" "-n 2 --state replicated" "-n 2 --backend tcp" "-n 3" "-n 4" "-n 1 --reproducible" \
            "-n 3 --reproducible" \
            "-n 4 --reproducible --backend tcp" "-n 1 --accumulate 2" "-n 3 --accumulate 2" "-n 2 --clip 0.1" \
                "-n 3 --clip 0.1 --reproducible" \
            "-n 2 --dropout 0.1" "-n 3 --dropout 0.1 --reproducible" "-n 2 --recompute" \
                "-n 3 --recompute-blocks 1 --dropout 0.1 --reproducible" \
            "-n 2 --optimizer adamw --weight-decay 0.1 --clip 0.1 --accumulate 2"; do
            cases+=("train $model $ranks --dtype $dtype")
        done
    done
    cases+=("train $model -n 2 --gradient-dtype bf16" "train $model -n 2 --freeze *1.* --label-smoothing 0.1"
        "train $model -n 2 --batch 7")
done
cases+=("train llama --kv-heads 1 -n 2" "train llama --untied -n 2 --reproducible" "train gpt -n 2 --packing windows"
    "train gpt -n 1 --threads 2")
for directory in "$stored"/*/; do
    directory=$(basename "$directory")
    cases+=("resume $directory -n 1" "resume $directory -n 2" "resume $directory -n 3 --backend tcp"
        "resume $directory -n 2 --state replicated")
done
for model in gpt llama; do
    for how in "--temperature 0" "--temperature 0.8 --top-k 20 --seed 3" "--temperature 1 --top-p 0.9 --seed 4" \
        "--temperature 0 --dtype bf16"; do
        cases+=("generate $model $how")
    done
done

# Everything runs in one directory, so that what the stored checkpoints record of their data (text:text.txt) is found
# there.
cd "$work" || exit 1
awk 'BEGIN { split("the quick brown fox jumps over a lazy dog while seven wizards mix odd liquids", word, " ")
             for (i = 0; i < 800; i++)
                 printf "%s%s", word[1 + (i * i + int(i / 7)) % 15], i % 11 == 10 ? ".\n" : " " }' >text.txt
awk '{ printf "{\"text\": \"%s\", \"class\": \"%s\"}\n", $0, NR % 3 ? NR % 2 ? "odd" : "even" : "third" }' text.txt \
    >rows.jsonl

# The fixed part of a training: small, so that hundreds of cases take a minute. A case's own words come later and take
# precedence.
words_of() {
    local small="--layers 2 --heads 2 --width 32 --context 16 --batch 12 --steps 8 --tokenizer byte"
    case $1 in
    mlp*) echo "--data synthetic --batch 24 --steps 30" ;;
    encoder*) echo "$small --data jsonl:rows.jsonl --label class --holdout 0" ;;
    gpt* | llama*) echo "$small --data text:text.txt --holdout 0" ;;
    *) echo "--data synthetic:3x16x16,count=200 --batch 24 --steps 30" ;;
    esac
}

# run_case COMMAND CASE: prints the digest of what the case computes, or nothing.
run_case() {
    local kind subject rest trained
    read -r kind subject rest <<<"$2"
    rm -rf run
    set -f # a case is a list of words, some with stars
    # shellcheck disable=SC2046,SC2086
    case $kind in
    train) "$1" train --model $subject $(words_of "$subject") --threads 1 --eval-every -1 --save run $rest >err 2>&1 ;;
    resume)
        cp -r "$stored/$subject" run &&
            "$1" train --resume auto --save run --steps 12 --threads 1 --eval-every -1 $rest >err 2>&1
        ;;
    generate)
        trained=$subject-$(cksum <<<"$1" | cut -d ' ' -f 1)
        [ -d "$trained" ] || "$1" train --model $subject \
            $(words_of "$subject") --steps 40 --lr 0.01 --threads 1 --save "$trained" >err 2>&1
        "$1" generate --load "$trained" --prompt "the quick" --tokens 12 --threads 1 $rest >generated 2>err ||
            rm -f generated
        ;;
    esac
    set +f
    case $kind in generate) sha256sum <generated ;; *) sha256sum <run/model.safetensors ;; esac 2>>err | cut -c 1-16
}

if [ "${1:-}" = --table ]; then
    for one in "${cases[@]}"; do
        case $one in *"${2:-}"*) printf '%s\t%s\t%s\n' "$key" "$one" "$(run_case "$LOCKSTEP" "$one")" ;; esac
    done
    exit 0
fi

commit=$(sed -n 's/^# commit //p' "$table")
build_reference() {
    git -C "$SOURCE_DIR" cat-file -e "$commit^{commit}" 2>/dev/null ||
        { echo "skipped: no bits for $key in golden/bits.txt, and commit $commit is not in this clone"; exit 77; }
    mkdir "$work/tree"
    # as CMakeLists.txt has it since then
    case $key in avx*' gcc '* | amx' gcc '*) export CFLAGS="${CFLAGS:-} --param=avoid-fma-max-bits=0" ;; esac
    git -C "$SOURCE_DIR" archive "$commit" | tar -x -C "$work/tree" &&
        cmake -S "$work/tree" -B "$work/build" -DLK_TESTS=OFF -DCMAKE_C_COMPILER="$CC" >"$work/log" 2>&1 &&
        cmake --build "$work/build" -j "$(nproc)" --target lockstep_command >>"$work/log" 2>&1 ||
            { tail -20 "$work/log" >&2; fail "commit $commit does not build"; exit 1; }
}

# of a set that multiplies bf16, those cases are compared only if the table has its own lines
without_bf16() {
    local i
    for i in "${!cases[@]}"; do
        case ${cases[i]} in *" --dtype bf16"* | "resume "*-bf16" "*) unset "cases[i]" ;; esac
    done
}
if grep -q "^$extended	" "$table"; then
    grep -q "^$key	" "$table" || without_bf16
    declare -A digests
    for set in "$extended" "$key"; do
        while IFS=$'\t' read -r at one digest; do [ "$at" != "$set" ] || digests[$one]=$digest; done <"$table"
    done
    wanted() { echo "${digests[$1]:-}"; }
else
    echo "no bits for $key in golden/bits.txt: building commit $commit to compare with"
    build_reference
    wanted() { run_case "$work/build/lockstep" "$1"; }
    [ "$key" = "$extended" ] || without_bf16 # products of bf16 had no instructions at that commit
fi

for one in "${cases[@]}"; do
    want=$(wanted "$one") got=$(run_case "$LOCKSTEP" "$one")
    [ -n "$want" ] || fail "$one: no bits to compare with"
    [ "$got" = "$want" ] || fail "$one: ${got:-nothing: $(tail -2 err)}, at commit ${commit:0:7} $want"
done
[ $failed = 0 ] && echo "${#cases[@]} cases have the bits of commit ${commit:0:7} ($key)"
exit $failed
