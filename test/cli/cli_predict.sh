#!/usr/bin/env bash
# cli_predict.sh - `lockstep predict` on the user's own image files, with nothing but a checkpoint: the predictions are
# those of the same files as a data set; sizes, broken files, directories, formats.
# ctest: timeout 240
set -eu
command -v python3 > /dev/null || { echo "skipped: no python3, which writes the PNG files"; exit 77; }
"$LOCKSTEP" info | grep -q '^libpng *[0-9]' || { echo "skipped: built without libpng"; exit 77; }
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

# Three classes by brightness and slope; names that CSV and the shell must quote; a picture of another size.
python3 - << 'END'
import os, random, struct, zlib
def png(path, height, width, pixel):
    rows = b"".join(b"\0" + bytes(v for x in range(width) for v in pixel(y, x)) for y in range(height))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
                   + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
random.seed(1)
kinds = {"dark": lambda y, x: 30, "rising, right": lambda y, x: 8 * x, 'say "light"': lambda y, x: 220}
def noisy(f): return lambda y, x: [min(255, max(0, int(f(y, x) + random.gauss(0, 25)))) for _ in range(3)]
for name, f in kinds.items():
    for i in range(40): png(f"set/train/{name}/{i:02}.png", 24, 28, noisy(f))
    for i in range(5): png(f"set/test/{name}/{i:02}.png", 24, 28, noisy(f))
png("large.png", 61, 45, noisy(kinds['say "light"']))
END

"$LOCKSTEP" train --model cnn --data folder:set --batch 16 --epochs 3 --threads 1 --mean 0.4,0.5,0.6 --std 0.3 --save \
    run > /dev/null 2> err.txt || fail "$(cat err.txt)"
rm -r set/train/dark set/train/say* # predict needs no training data
"$LOCKSTEP" predict --load run --threads 1 --batch 4 --json "set/test/dark" "set/test/rising, right" \
    'set/test/say "light"' > files.json 2> err.txt || fail "$(cat err.txt)"
[ "$(wc -l < files.json)" = 15 ] || fail "15 files: $(cat files.json)"
expect_text 0 "" "$LOCKSTEP" predict --load run --threads 1 set/test --json
cmp -s out.txt files.json || fail "a directory with all of them: $(cat out.txt)"

# The same predictions as for the same files as a data set, with the same classes.
mkdir -p again/train && for class in set/test/*; do cp -r "$class" again/train/; done && cp -r again/train again/test
"$LOCKSTEP" predict --load run --threads 1 --data folder:again --count 15 --json > set.json 2> err.txt ||
    fail "$(cat err.txt)"
python3 - << 'END' || fail "files: $(cat files.json), data set: $(cat set.json)"
import json
a, b = [[json.loads(line) for line in open(name)] for name in ("files.json", "set.json")]
assert [x["probabilities"] for x in a] == [x["probabilities"] for x in b], "probabilities"
assert [x["name"] for x in a] == [x["name"] for x in b]
assert {x["name"] for x in a} == {"dark", "rising, right", 'say "light"'}
assert all(x["file"].split("/")[2] == x["name"] for x in a) and all("label" not in x for x in a), "names"
END

# A picture of another size is resized to what the model reads; the formats of names.
expect_text 0 "" "$LOCKSTEP" predict --load run --threads 1 --top 2 large.png 'set/test/say "light"/00.png'
grep -Eq '^large.png  say "light" [0-9.]+ %, [a-z, ]+ [0-9.]+ %$' out.txt || fail "large.png: $(cat out.txt)"
expect_text 0 "" "$LOCKSTEP" predict --load run --threads 1 --csv 'set/test/say "light"/00.png'
[ "$(head -1 out.txt)" = "file,class_1,name_1,probability_1" ] &&
    grep -q '^"set/test/say ""light""/00.png",2,"say ""light""",[01]' out.txt || fail "CSV: $(cat out.txt)"
expect_text 0 "" "$LOCKSTEP" info run
grep -q '^ *label i32 (), 3 classes: dark, rising, right, say "light"$' out.txt || fail "info: $(cat out.txt)"

# Broken files are named; with --skip-broken the others are printed.
head -c 300 large.png > cut.png
echo "not an image" > text.png
for broken in cut.png text.png; do
    expect_text 2 "$broken" "$LOCKSTEP" predict --load run --threads 1 large.png $broken
    expect_text 0 "$broken" "$LOCKSTEP" predict --load run --threads 1 large.png $broken 'set/test/dark/00.png' \
        --skip-broken
    [ "$(wc -l < out.txt)" = 2 ] || fail "--skip-broken: $(cat out.txt)"
done
expect_text 2 "none of its 1 images" "$LOCKSTEP" predict --load run --threads 1 text.png --skip-broken
expect_text 2 "nowhere.png: cannot open: No such file" "$LOCKSTEP" predict --load run nowhere.png
mkdir empty
expect_text 2 "empty: the directory has no PNG or JPEG files" "$LOCKSTEP" predict --load run empty
expect_text 2 "image files and --data are mutually exclusive" "$LOCKSTEP" predict --load run --data folder:set large.png
"$LOCKSTEP" train --model mlp --steps 2 --threads 1 --save numbers 2> /dev/null
expect_text 2 "large.png: the model in numbers takes features, not images" "$LOCKSTEP" predict --load numbers large.png
expect_text 2 "large.png: image files need a checkpoint directory" "$LOCKSTEP" predict --load run/model.safetensors \
    --model cnn large.png
for option in "--holdout 0.1" "--cache kept"; do expect_text 2 "image files do not use it" "$LOCKSTEP" predict --load \
    run large.png $option; done
[ ! -e kept ] || fail "predict made a cache"
expect_text 2 "cut.png is damaged: it is truncated; --skip-broken leaves such files out" "$LOCKSTEP" predict --load \
    run cut.png

# Images of an array, whose label's name is recorded, and a regression, which has no most probable class.
python3 - << 'END'
import random, struct, zipfile
random.seed(2)
def npy(descr, shape, data):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data
x = npy("|u1", (20, 8, 8, 3), bytes(random.randrange(256) for _ in range(20 * 192)))
for name, label, y in (
        ("kinds", "kind", npy("|u1", (20,), bytes(i % 3 for i in range(20)))),
        ("reals", "y", npy("<f4", (20,), struct.pack("<20f", *(i / 7 for i in range(20)))))):
    with zipfile.ZipFile(name + ".npz", "w") as file:
        file.writestr("x.npy", x)
        file.writestr(label + ".npy", y)
END
"$LOCKSTEP" train --model mlp --data npz:kinds.npz --label kind --steps 2 --batch 8 --save kinds 2> err.txt ||
    fail "$(cat err.txt)"
expect_text 0 "" "$LOCKSTEP" predict --load kinds large.png --top 3
grep -Eq '^large.png  [012] [0-9.]+ %, [012] [0-9.]+ %, [012] [0-9.]+ %$' out.txt ||
    fail "an array's model: $(cat out.txt)"
"$LOCKSTEP" train --model mlp --data npz:reals.npz --steps 2 --batch 8 --save reals 2> err.txt || fail "$(cat err.txt)"
expect_text 0 "" "$LOCKSTEP" predict --load reals large.png
expect_text 2 "--top applies only to models that predict classes; this one predicts numbers" \
    "$LOCKSTEP" predict --load reals \
    large.png --top 2
echo ok
