#!/usr/bin/env bash
# cifar_folder.sh - CIFAR-10 as a folder of PNG files gives the losses of its binary files, bit for bit and in the same
# order: an epoch over all records that are stored, on 1, 2 and 3 ranks, with any number of workers.
# ctest: timeout 240, ranks 3
set -eu
command -v python3 > /dev/null || { echo "skipped: no python3, which writes the PNG files"; exit 77; }
"$LOCKSTEP" info | grep -q '^libpng *[0-9]' || { echo "skipped: built without libpng"; exit 77; }
source=${LK_CIFAR_SOURCE:-$SOURCE_DIR/../shared/data/cifar-10-batches-bin}
[ -f "$source/data_batch_1.bin" ] || { echo "skipped: no CIFAR-10 in $source"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$*"; exit 1; }
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([-0-9a-zA-Z.+]*\).*/\1/p"; }
steps() { grep '"event": *"step"' "$1" | field loss; }
evaluated() { grep '"event": *"evaluated"' "$1" | field "$2"; }

python3 "$SOURCE_DIR/test/data/cifar_folder.py" "$source" .
record=3073
stored=$(cat "$source"/data_batch_?.bin | wc -c) tests=$(wc -c < "$source/test_batch.bin")
count=$((stored / record)) tests=$((tests / record))
[ "$count" -ge 5000 ] && [ "$(find folder/train -name '*.png' | wc -l)" = "$count" ] ||
    fail "$count records, $(find folder/train -name '*.png' | wc -l) files"
[ "$(find folder/test -name '*.png' | wc -l)" = "$tests" ] || fail "$tests records to test"
# The sorted files hold the records of the original ones, each once.
digest() { python3 -c 'import sys, hashlib
data = b"".join(open(f, "rb").read() for f in sys.argv[1:])
print(hashlib.sha256(b"".join(sorted(data[i : i + 3073] for i in range(0, len(data), 3073)))).hexdigest())' "$@"; }
[ "$(digest "$source"/data_batch_?.bin)" = "$(digest sorted/data_batch_?.bin)" ] ||
    fail "the sorted files hold other records"

# An epoch of the binary files on one rank, then of the folder.
train="$LOCKSTEP train --model mlp --hidden 32 --batch 64 --epochs 1 --seed 3"
train+=" --flip 0.5 --crop-padding 2 --reproducible --json"
$train --data cifar10:sorted --log binary.jsonl --save run > binary.json 2> /dev/null
[ "$(steps binary.jsonl | wc -l)" = $(((count + 63) / 64)) ] || fail "the log: $(tail -3 binary.jsonl)"
[ "$(evaluated binary.jsonl samples)" = "$tests" ] || fail "each test sample once: $(tail -3 binary.jsonl)"
for more in "" "--workers 0 --threads 1" "-n 2" "-n 3 --workers 2"; do
    $train --data folder:folder --log folder.jsonl $more > folder.json 2> err.txt || fail "$more: $(cat err.txt)"
    diff <(steps binary.jsonl) <(steps folder.jsonl) > difference.txt ||
        fail "$more: losses differ: $(head -4 difference.txt)"
    for value in loss accuracy samples; do
        [ "$(evaluated binary.jsonl $value)" = "$(evaluated folder.jsonl $value)" ] ||
            fail "$more: $value: $(tail -1 folder.jsonl)"
    done
    [ "$(field hash < binary.json)" = "$(field hash < folder.json)" ] || fail "$more: $(cat binary.json folder.json)"
    rm folder.jsonl
done
# The original test records, in their own order, give as many right answers.
accuracy() { "$LOCKSTEP" eval --load run --data "$1" --json 2> /dev/null | field accuracy; }
[ -n "$(accuracy folder:folder)" ] && [ "$(accuracy folder:folder)" = "$(accuracy "cifar10:$source")" ] ||
    fail "eval: $(accuracy folder:folder), $(accuracy "cifar10:$source")"
echo "$count and $tests images: $(steps binary.jsonl | wc -l) equal losses," \
    "the last $(steps binary.jsonl | tail -1), hash $(field hash < binary.json)"
