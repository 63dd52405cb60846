#!/usr/bin/env bash
# examples.sh - runs every example that needs one rank and checks that it learns: on synthetic data, on arrays, and from
# saved weights.
# ctest: timeout 240
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
examples=$BUILD_DIR/examples
cd "$work"

# learned FILE: the last test accuracy in it is at least 95 %. The classes of synthetic data are easy to tell apart.
learned() {
    accuracy=$(grep -oE 'accuracy [0-9.]+' "$1" | tail -1 | cut -d' ' -f2)
    awk -v a="${accuracy:-0}" 'BEGIN { exit !(a >= 95) }' || { echo "learned too little:" >&2; cat "$1" >&2; exit 1; }
}

data=synthetic:3x32x32,count=512
"$examples/cnn" $data 2 run > cnn.txt
learned cnn.txt
[ -s run/model.safetensors ] || { echo "cnn saved nothing" >&2; exit 1; }
"$examples/cnn" $data 3 run > more.txt # resumes
! grep -q 'epoch 1:' more.txt || { echo "cnn started again instead of resuming" >&2; exit 1; }
learned more.txt

"$examples/loop" $data 2 > loop.txt
learned loop.txt
# The loop by hand ends in the trainer's bits.
"$LOCKSTEP" train --model cnn --data $data --epochs 2 --json 2> train.err > train.json
hash=$(grep -oE '"hash": *"[0-9a-f]+"' train.json | grep -oE '[0-9a-f]{16}')
grep -q "hash $hash" loop.txt || { echo "loop.c ends in $(tail -1 loop.txt), the trainer in $hash" >&2; exit 1; }
[ "$(wc -l < "$SOURCE_DIR/examples/loop.c")" -lt 150 ]

"$examples/mlp" corners.safetensors > mlp.txt
learned mlp.txt
"$examples/infer" corners.safetensors > infer.txt
[ "$(grep -c class infer.txt)" = 4 ]
if "$examples/infer" run/model.safetensors > /dev/null 2> wrong.txt; then echo \
    "infer accepted the weights of another model" >&2; exit 1; fi
[ -s wrong.txt ] || { echo "infer printed no error about the weights of another model" >&2; exit 1; }

# A GPT by hand learns the bytes of a text, which changes with the documentation: below 3.7 after 60 steps, where a
# uniform guess has 5.5.
"$examples/gpt" "$SOURCE_DIR/docs/from-pytorch.md" 60 > gpt.txt
awk '/^step/ { loss = $4 } END { exit !(loss > 0 && loss < 3.7) }' gpt.txt ||
    { echo "gpt learned too little:" >&2; cat gpt.txt >&2; exit 1; }
[ "$(wc -l < "$SOURCE_DIR/examples/gpt.c")" -lt 110 ]

for source in "$SOURCE_DIR"/examples/*.c; do
    name=$(basename "$source" .c)
    grep -q "examples/$name" "$SOURCE_DIR"/test/tree/examples*.sh "$SOURCE_DIR"/test/cli/cli_model.sh ||
        { echo "examples/$name.c is not run by these tests" >&2; exit 1; }
done
