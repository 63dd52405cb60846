#!/usr/bin/env bash
# cli_folder.sh - `--data folder:DIR`: CIFAR-10's records as PNG files give the losses of its binary files, bit for bit;
# ranks, resuming, the cache and workers change nothing; mistakes. cifar_folder.sh does the first with all that is
# stored of CIFAR-10.
# ctest: timeout 240, ranks 3
set -eu
command -v python3 > /dev/null || { echo "skipped: no python3, which writes the PNG files"; exit 77; }
"$LOCKSTEP" info | grep -q '^libpng *[0-9]' || { echo "skipped: built without libpng"; exit 77; }
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

source=${LK_CIFAR_SOURCE:-$SOURCE_DIR/../shared/data/cifar-10-batches-bin} # "-": drawn
[ -d "$source" ] || source=-
python3 "$SOURCE_DIR/test/data/cifar_folder.py" "$source" . "${LK_CIFAR_COUNT:-500}"
count=$(find folder/train -name '*.png' | wc -l) # or fewer, where only a part of CIFAR-10 is stored
[ "$count" -ge 500 ] || fail "the folder has $count images"

# The same losses, the same evaluation and the same weights, from both, in the same order.
train="$LOCKSTEP train --model cnn --batch 32 --epochs 1 --seed 3 --crop-padding 2 --flip 0.5 --json"
$train --data cifar10:sorted --log binary.jsonl > binary.json 2> /dev/null
$train --data folder:folder --log folder.jsonl --workers 2 > folder.json 2> /dev/null
steps() { grep '"event": *"step"' "$1" | field loss; }
[ "$(steps binary.jsonl | wc -l)" = $(((count + 31) / 32)) ] || fail "the log: $(cat binary.jsonl)"
diff <(steps binary.jsonl) <(steps folder.jsonl) || fail "losses differ"
for value in hash loss accuracy; do
    [ "$(field $value < binary.json)" = "$(field $value < folder.json)" ] ||
        fail "$value: $(cat binary.json folder.json)"
done
echo "$count images: $(steps folder.jsonl | wc -l) equal losses, hash $(field hash < folder.json)"
if [ "$count" != 500 ]; then exit 0; fi

# Ranks, workers, the cache and a resume in mid-epoch, with other ranks, change no bits. Fewer images: 6 of each class,
# and 2 to test.
for class in folder/train/*; do
    mkdir -p "few/train/${class##*/}" "few/test/${class##*/}"
    find "$class" -name '*.png' | sort | head -n 6 | xargs -I{} cp {} "few/train/${class##*/}"
    find "$class" -name '*.png' | sort | tail -n 2 | xargs -I{} cp {} "few/test/${class##*/}"
done
same="--model cnn --data folder:few --batch 16 --epochs 2 --threads 1 --seed 5 --reproducible --json"
"$LOCKSTEP" train $same --log one.jsonl > one.json 2> /dev/null
hash=$(field hash < one.json)
tested() { grep '"event": *"evaluated"' "$1" | tail -1 | field samples; }
[ "$(tested one.jsonl)" = 20 ] || fail "each test sample once: $(cat one.jsonl)"
for more in "-n 2" "-n 3 --workers 2" "--workers 0 --cache cache" "-n 3 --cache cache2" "--cache cache2"; do
    got=$("$LOCKSTEP" train $same $more 2> err.txt | field hash)
    [ "$got" = "$hash" ] || fail "$more: $got, not $hash: $(cat err.txt)"
done
[ "$(ls cache2 | wc -l)" = 2 ] || fail "the cache of two splits: $(ls cache2)"
"$LOCKSTEP" train $same -n 3 --steps 3 --save run 2> /dev/null > /dev/null
"$LOCKSTEP" train $same -n 2 --steps 6 --save run --resume auto --cache cache 2> /dev/null > /dev/null
got=$("$LOCKSTEP" train $same --save run --resume auto 2> /dev/null | field hash)
[ "$got" = "$hash" ] || fail "resumed: $got, not $hash"

# As many workers as compute threads, at most 4, which the loader's memory shows; one where nothing is decoded.
planned() { "$LOCKSTEP" plan --model cnn --data folder:few $* | awk '$1 == "loader" { print $2 }'; }
for pair in "1 1" "2 2" "3 3" "9 4"; do
    [ "$(planned --threads "${pair% *}")" = "$(planned --threads "${pair% *}" --workers "${pair#* }")" ] ||
        fail "workers of ${pair% *} threads"
done
[ "$(planned --threads 3 --cache cache)" = "$(planned --threads 3 --cache cache --workers 1)" ] ||
    fail "workers with a cache"

# Part of the samples held out; resized; grey; class names.
"$LOCKSTEP" train --model cnn --data folder:folder/train --holdout 0.2 --size 16,24 --channels 1 --batch 100 --epochs \
    1 --save held --log held.jsonl 2> err.txt ||
    fail "$(cat err.txt)"
held=$(tested held.jsonl)
[ "$held" -gt 60 ] && [ "$held" -lt 140 ] || fail "a fifth of 500 held out: $(cat held.jsonl)"
"$LOCKSTEP" eval --load held --model cnn --data folder:folder/train --holdout 0.2 --size 16,24 --channels 1 --json |
    grep -q "\"samples\": *$held" ||
    fail "eval of what was held out"

# Mistakes: one sentence, exit status 2.
data() { echo "$LOCKSTEP train --model cnn --steps 1 --data folder:$1 ${*:2}"; }
expect_text 2 "No such file" $(data nowhere)
expect_text 2 "this is a file" $(data one.json)
mkdir -p empty single/a/ sizes
expect_text 2 "no subdirectories" $(data empty)
cp folder/train/cat/*0.png single/a/
expect_text 2 "only one class (a)" $(data single)
mkdir single/b
expect_text 2 "class b has no PNG or JPEG files" $(data single)
cp -r folder/train/cat folder/train/dog sizes/
cp "$SOURCE_DIR/test/golden/images/rgb8.png" sizes/dog/zz.png
expect_text 2 "sizes/dog/zz.png is 23x37: images of different sizes need --size" $(data sizes)
expect_text 0 "" $(data sizes --size 32,32 --holdout 0.1)
for wrong in "--size 32" "--size 0,32" "--size 32,32,32" "--size 3.5,8" "--channels 2" "--holdout 1"; do expect_text 2 \
    "${wrong% *}" $(data sizes $wrong); done
for option in "--size 8,8" "--channels 1" "--cache cache" "--skip-broken"; do
    expect_text 2 "${option%% *}" "$LOCKSTEP" train --model cnn --data synthetic:3x32x32 --steps 1 $option
done
expect_text 2 "folder/test is the test set" $(data folder --holdout 0.1)

# Broken files, on one rank and on two.
broken=$(find sizes/dog -name '*.png' | sort | sed -n 3p)
head -c 700 "$broken" > cut && mv cut "$broken"
for ranks in "" "-n 2"; do
    expect_text 2 "$broken is damaged: it is truncated; --skip-broken leaves such files out" \
        $(data sizes --size 32,32 --epochs 1 --steps 1000 --holdout 0.1 $ranks)
    expect_text 0 "1 of" $(data sizes --size 32,32 --skip-broken $ranks)
    grep -qF "left out: $broken" err.txt || fail "the broken file is not listed: $(cat err.txt)"
    [ "$(grep -c 'left out: ' err.txt)" = 1 ] || fail "it is listed more than once: $(cat err.txt)"
done
expect_text 2 "$broken is damaged" $(data sizes --size 32,32 --cache cache3)
: > file
for cache in file file/below; do expect_text 2 "file: cannot create the directory: a file with that name exists" \
    $(data folder --cache $cache); done
expect_text 2 "/proc/none: cannot create the directory" $(data folder --cache /proc/none)
expect_text 2 "cannot create the cache" $(data folder --cache /proc)
