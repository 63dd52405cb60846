#!/usr/bin/env bash
# cli_eval.sh - eval and predict read what is named: files of one's own whole and each sample once, test sets where
# there are some, every token of a text but its first; the loss of several files is the mean of theirs; and what is
# wrong with the data is said.
# ctest: timeout 240
set -eu
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
# shellcheck source=test/terminal.bash
. "$SOURCE_DIR/test/terminal.bash"
run() { "$LOCKSTEP" "$@" --threads 1 --json > out.txt 2> err.txt || fail "$*: $(cat err.txt)"; }
# evaluate LOAD DATA… → "loss count": of tokens for texts, otherwise of samples
evaluate() {
    run eval --load "$1" --data "${@:2}"
    local count
    count=$(field tokens < out.txt)
    echo "$(field loss < out.txt) ${count:-$(field samples < out.txt)}"
}
# mean_of LINE LINE LINE: the third is the mean of the first two, weighted by their counts.
mean_of() {
    printf '%s\n' "$@" | awk '{ loss[NR] = $1; n[NR] = $2 }
        END { d = (loss[1] * n[1] + loss[2] * n[2]) / (n[1] + n[2]) - loss[3]
              exit !(NR == 3 && n[1] > 0 && n[2] > 0 && n[3] == n[1] + n[2] && d < 2e-6 && d > -2e-6 &&
                     loss[1] != loss[2]) }' || fail "not the mean: $*"
}

words() { # words SEED COUNT
    awk -v seed="$1" -v count="$2" \
        'BEGIN { srand(seed)
            n = split("the quick brown fox jumps over a lazy dog and sleeps under some green tree", w, " ")
            for (i = 0; i < count; i++) printf("%s%s", w[int(rand() * n) + 1], (i % 9 == 8 ? "\n" : " ")) }'
}
words 1 600 > train.txt
mkdir -p texts images
words 2 90 > texts/a.txt
words 3 37 > texts/b.txt

# ---- language models ----

"$LOCKSTEP" train --model gpt --layers 1 --heads 2 --width 16 --context 24 --data text:train.txt --tokenizer char \
    --steps 20 --batch 8 --save text --threads 1 > /dev/null 2> err.txt || fail "$(cat err.txt)"
bytes() { wc -c < "$1" | tr -d ' '; }
a=$(evaluate text text:texts/a.txt)
b=$(evaluate text text:texts/b.txt)
[ "${a#* }" = $(($(bytes texts/a.txt) - 1)) ] && [ "${b#* }" = $(($(bytes texts/b.txt) - 1)) ] ||
    fail "every token but the first: $a, $b"
mean_of "$a" "$b" "$(evaluate text text:texts)"
mean_of "$a" "$b" "$(evaluate text text:texts/a.txt,texts/b.txt --split all)"
[ "$(evaluate text text:texts/a.txt,texts/b.txt)" = "$b" ] || fail "a validation set: $(cat out.txt)"
# Lines are documents as files are, and so are those of tokens between end tokens.
lines() { awk '{ printf("%s%s", (NR > 1 ? "\\n" : "{\"text\": \""), $0) } END { print "\\n\"}" }' "$1"; }
{ lines texts/a.txt; lines texts/b.txt; } > lines.jsonl
for file in a b; do [ "$(tail -c 1 texts/$file.txt)" = "" ] || echo >> texts/$file.txt; done
mean_of "$(evaluate text text:texts/a.txt)" "$(evaluate text text:texts/b.txt)" "$(evaluate text jsonl:lines.jsonl)"
for stride in 24 7 1; do mean_of "$(evaluate text text:texts/a.txt --stride $stride)" \
    "$(evaluate text text:texts/b.txt --stride $stride)" "$(evaluate text text:texts --stride $stride)"; done
[ "$(evaluate text text:texts/a.txt --stride 24)" = "$(evaluate text text:texts/a.txt)" ] ||
    fail "the default of --stride is the context"
# Tokens: each once, not a window at every offset.
expect 0 "" "$LOCKSTEP" data tokenize texts/a.txt --tokenizer text --out a.bin
[ "$(evaluate text tokens:a.bin)" = "$(evaluate text text:texts/a.txt)" ] ||
    fail "tokens: $(cat out.txt), text: $(evaluate text text:texts/a.txt)"
# Windows of another length, where the weights have no positions of their own.
expect 0 "" "$LOCKSTEP" train --model llama --layers 1 --heads 2 --width 16 --context 24 --data text:train.txt \
    --tokenizer char --steps 3 --batch 8 --save llama --threads 1
head -c 12 texts/a.txt > short.txt
[ "$(evaluate llama text:short.txt --context 11)" = "$(evaluate llama text:short.txt --context 13)" ] ||
    fail "a text that fits into both contexts: $(cat out.txt)"
[ "$(evaluate llama text:texts/a.txt --context 5)" != "$(evaluate llama text:texts/a.txt)" ] ||
    fail "a shorter context: $(cat out.txt)"
# A model of documents takes tokens as documents: the same as their lines.
cat > tokenizer.json << END
{"version": "1.0", "added_tokens": [{"id": 3, "content": "<|end|>", "single_word": false, "lstrip": false, \
"rstrip": false, "normalized": false, "special": true}],
 "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, \
"use_regex": true}, "post_processor": null, "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "unk_token": null, "vocab": {"a": 0, "b": 1, "c": 2, "<|end|>": 3}, "merges": []}}
END
echo '{"eos_token": "<|end|>"}' > tokenizer_config.json
awk 'BEGIN { srand(9)
    for (i = 0; i < 60; i++) {
        t = ""; for (k = 0; k <= i % 37; k++) t = t substr("abcab", int(rand() * 5) + 1, 1)
        print "{\"text\": \"" t "\"}" } }' > abc.jsonl
expect 0 "" "$LOCKSTEP" train --model gpt --layers 1 --heads 2 --width 8 --context 16 --data jsonl:abc.jsonl \
    --tokenizer . --steps 5 --batch 4 --save abc --threads 1
cp abc.jsonl new.jsonl
expect 0 "" "$LOCKSTEP" data tokenize new.jsonl --tokenizer . --out abc.bin
[ "$(evaluate abc jsonl:new.jsonl)" = "$(evaluate abc tokens:abc.bin)" ] ||
    fail "documents: $(cat out.txt), lines: $(evaluate abc jsonl:new.jsonl)"
[ "$(evaluate abc jsonl:new.jsonl | cut -d ' ' -f 2)" = $(($(sed 's/.*: "//' new.jsonl | tr -cd 'abc' | wc -c) - 60)) \
    ] || fail "every token but the first of 60 documents: $(cat out.txt)"
# Perplexity and bits for each byte: a character is one here.
python=$(command -v python3 || true)
expect 0 "" "$LOCKSTEP" eval --load text --data text:texts/a.txt --json
awk -v loss="$(field loss < out.txt)" -v p="$(field perplexity < out.txt)" -v b="$(field bits_per_byte < out.txt)" \
    'BEGIN { d = p / exp(loss) - 1; e = b / (loss / log(2)) - 1; exit !(loss > 0 && d * d < 1e-12 && e * e < 1e-12) }' \
    || fail "perplexity and bits: $(cat out.txt)"
expect 0 "" "$LOCKSTEP" eval --load text --data text:texts/a.txt
pattern="^loss [0-9.]+, accuracy [0-9.]+ %, perplexity [0-9.]+, bits_per_byte [0-9.]+ "
pattern+="\($(($(bytes texts/a.txt) - 1)) tokens scored in [0-9]+ windows\)$"
grep -qE "$pattern" out.txt || fail "$(cat out.txt)"

# Without --data: what training held out, as before. The file of training is read whole when it is named, which is said.
run eval --load text
held=$(cat out.txt)
[ "$(field split < out.txt)" = test ] && [ "$(field tokens < out.txt)" -lt $(($(bytes train.txt) / 9)) ] ||
    fail "the part held out: $held"
for name in train.txt ./train.txt "$PWD/train.txt"; do
    expect 0 "the model was trained on .*train.txt, except for the part that was held out" \
        "$LOCKSTEP" eval --load text --data text:$name --json
    [ "$(field tokens < out.txt)" = $(($(bytes train.txt) - 1)) ] && [ "$(field split < out.txt)" = all ] ||
        fail "all of it: $(cat out.txt)"
done
run eval --load text --data text:train.txt --split test
[ "$(cat out.txt)" = "$held" ] || fail "--split test: $(cat out.txt), not $held"
run eval --load text --split train
[ $(($(field tokens < out.txt) + 2)) = $(($(bytes train.txt) - $(echo "$held" | field tokens))) ] ||
    fail "--split train: $(cat out.txt)"
run eval --load text --holdout 0
[ "$(field tokens < out.txt)" = $(($(bytes train.txt) - 1)) ] || fail "--holdout 0: $(cat out.txt)"
run eval --load text --data text:texts/a.txt --holdout 0.5
[ "$(field tokens < out.txt)" -lt $(($(bytes texts/a.txt) / 2 + 2)) ] || fail "--holdout 0.5: $(cat out.txt)"
expect 2 "a stride of 25 tokens is invalid: expected 1 to the context of 24" "$LOCKSTEP" eval --load text --stride 25
printf x > single.txt
expect 2 "single.txt has 1 token: expected at least 2" "$LOCKSTEP" eval --load text --data text:single.txt

# ---- classes of texts, tables ----

for i in $(seq 50); do
    if [ $((i % 2)) = 0 ]; then text="good day" kind=yes; else text="bad rain" kind=no; fi
    echo "{\"text\": \"$text $i\", \"kind\": \"$kind\"}"
done > kinds.jsonl
expect 0 "" "$LOCKSTEP" train --model encoder --layers 1 --heads 2 --width 8 --context 16 --data jsonl:kinds.jsonl \
    --label kind --tokenizer byte --epochs 1 --batch 10 --save kinds --threads 1
cp kinds.jsonl other.jsonl
expect 0 "jsonl:other.jsonl: all 50 samples" "$LOCKSTEP" predict --load kinds --data jsonl:other.jsonl --label kind \
    --count 50 --csv
[ "$(wc -l < out.txt)" = 51 ] || fail "50 of 50 lines: $(cat out.txt)"
expect 2 "--stride applies only to language models" "$LOCKSTEP" eval --load kinds --stride 4

{
    echo "x,y,kind"
    awk 'BEGIN { srand(5)
        for (i = 0; i < 130; i++) {
            k = i % 3
            printf("%.3f,%.3f,%s\n", rand() + k, rand() - k, (k == 0 ? "ant" : k == 1 ? "bee" : "cow")) } }'
} > table.csv
head -n 31 table.csv > rows.csv
{ head -n 1 table.csv; sed -n 32,81p table.csv; } > more.csv
{ cat rows.csv; tail -n +2 more.csv; } > both.csv
expect 0 "" "$LOCKSTEP" train --model mlp --hidden 8 --data csv:table.csv --label kind --holdout 0.2 --steps 30 \
    --batch 10 --save table --threads 1
a=$(evaluate table csv:rows.csv --label kind)
b=$(evaluate table csv:more.csv --label kind)
[ "${a#* }" = 30 ] && [ "${b#* }" = 50 ] || fail "all rows: $a, $b"
mean_of "$a" "$b" "$(evaluate table csv:both.csv --label kind)"
expect 0 "csv:rows.csv: all 30 samples" "$LOCKSTEP" predict --load table --data csv:rows.csv --label kind --csv
[ "$(wc -l < out.txt)" = 31 ] && [ "$(tail -n +2 out.txt | cut -d, -f1 | tr '\n' ' ')" = "$(seq -s ' ' 0 29) " ] ||
    fail "all 30 rows in order: $(cat out.txt)"
expect 0 "csv:rows.csv: 4 of the 30 samples" "$LOCKSTEP" predict --load table --data csv:rows.csv --label kind --count 4
[ "$(wc -l < out.txt)" = 4 ] || fail "4 rows: $(cat out.txt)"
expect 0 "" "$LOCKSTEP" predict --load table --data csv:rows.csv --label kind
[ "$(wc -l < out.txt)" = 30 ] || fail "not a terminal: $(cat out.txt)"
if has_terminal; then
    on_terminal "'$LOCKSTEP' predict --load table --data csv:rows.csv --label kind" > tty.txt < /dev/null
    [ "$(grep -c " %" tty.txt)" = 10 ] && grep -q "10 of the 30 samples; --count prints more" tty.txt ||
        fail "on a terminal: $(cat tty.txt)"
    on_terminal "'$LOCKSTEP' predict --load table --data csv:rows.csv --label kind --csv" > tty.txt < /dev/null
    [ "$(grep -c '^[0-9]*,' tty.txt)" = 30 ] || fail "CSV on a terminal: $(cat tty.txt)"
fi
expect 0 "csv:table.csv: all 130 samples" "$LOCKSTEP" predict --load table --split all --json
[ "$(wc -l < out.txt)" = 130 ] || fail "--split all: $(wc -l < out.txt)"
test=$("$LOCKSTEP" eval --load table --json 2> err.txt | field samples)
train=$("$LOCKSTEP" eval --load table --split train --json 2> err.txt | field samples)
[ "$test" -gt 0 ] && [ $((test + train)) = 130 ] || fail "$test rows held out, $train for training"
expect 0 "the model was trained on csv:table.csv$" "$LOCKSTEP" eval --load table --split train
expect 2 "csv:rows.csv has no test set: --holdout 0.1 .*--split all" "$LOCKSTEP" eval --load table --data csv:rows.csv \
    --label kind --split test

# A set with a test set of its own takes that, unless --split says otherwise.
expect 0 "" "$LOCKSTEP" train --model mlp --hidden 8 --data synthetic:6,classes=3,count=40 --steps 2 --save drawn \
    --threads 1
for split in test:10 train:40 all:50; do
    run eval --load drawn --data synthetic:6,classes=3,count=40 --split ${split%:*}
    [ "$(field samples < out.txt)" = ${split#*:} ] || fail "--split $split: $(cat out.txt)"
done
run eval --load drawn --data synthetic:6,classes=3,count=40
[ "$(field samples < out.txt)" = 10 ] || fail "its test set: $(cat out.txt)"

# ---- what is wrong with the data ----

expect 2 "nowhere.txt: cannot open: No such file" "$LOCKSTEP" eval --load text --data text:nowhere.txt
expect 2 "cannot open nowhere.csv: No such file" "$LOCKSTEP" eval --load table --data csv:nowhere.csv --label kind
expect 2 "cannot open nowhere.csv: No such file" "$LOCKSTEP" predict --load table --data csv:nowhere.csv
sed '5s/^[^,]*,/many,/' rows.csv > broken.csv
expect 2 "broken.csv: line 5.*'many' is not a number" "$LOCKSTEP" eval --load table --data csv:broken.csv --label kind
rm table.csv
expect 2 "cannot open table.csv: No such file" "$LOCKSTEP" eval --load table
expect 2 "cannot open table.csv: No such file" "$LOCKSTEP" eval --load table --holdout 0

[ -n "$python" ] && "$LOCKSTEP" info | grep -q '^libpng *[0-9]' ||
    { leave_out "folders of images, which python3 writes for libpng" || finish 0; }

# ---- images ----

"$python" - << 'END'
import os, random, struct, zlib
random.seed(1)
def png(path, light):
    pixel = lambda: min(255, max(0, int(light + random.gauss(0, 30))))
    rows = b"".join(b"\0" + bytes(pixel() for x in range(8)) for y in range(8))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
                   + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
for folder, count in (("images/train", 12), ("images/test", 3), ("new", 4), ("other", 7)):
    for name, light in (("dark", 80), ("light", 150)):
        for i in range(count): png(f"{folder}/{name}/{folder[:2]}{i:02}.png", light)
END
mkdir union && cp -r new/* union && cp -r other/* union
expect 0 "" "$LOCKSTEP" train --model cnn --data folder:images --epochs 1 --batch 8 --save pictures --threads 1
a=$(evaluate pictures folder:new)
b=$(evaluate pictures folder:other)
[ "${a#* }" = 8 ] && [ "${b#* }" = 14 ] || fail "all images: $a, $b"
mean_of "$a" "$b" "$(evaluate pictures folder:union)"
for split in "" "--split test" "--split train" "--split all"; do
    # shellcheck disable=SC2086 # two words, or none
    run eval --load pictures --data folder:images $split
    case $split in *train) wanted=24 ;; *all) wanted=30 ;; *) wanted=6 ;; esac
    [ "$(field samples < out.txt)" = $wanted ] || fail "images $split: $(cat out.txt)"
done
expect 0 "the model was trained on folder:images/train$" "$LOCKSTEP" eval --load pictures --data \
    folder:images/train
# The test set needs nothing of the training set.
run eval --load pictures
tested=$(cat out.txt)
rm -r images/train
run eval --load pictures
[ "$(cat out.txt)" = "$tested" ] || fail "without the images for training: $(cat out.txt), not $tested"
"$python" - << 'END'
import json, random, struct
random.seed(2)
def write(path, parts):
    header, data = {}, b""
    for part, n in parts.items():
        for name, dtype, shape, values in (
                ("x", "F32", [n, 3], struct.pack(f"<{3 * n}f", *(random.random() for _ in range(3 * n)))),
                ("y", "I32", [n], struct.pack(f"<{n}i", *(i % 2 for i in range(n))))):
            header[f"{name}_{part}"] = dict(dtype=dtype, shape=shape, data_offsets=[len(data), len(data) + len(values)])
            data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as file: file.write(struct.pack("<Q", len(text)) + text + data)
write("arrays.safetensors", dict(train=20, test=6))
write("tested.safetensors", dict(test=9))
END
expect 0 "" "$LOCKSTEP" train --model mlp --hidden 4 --data safetensors:arrays.safetensors --steps 2 --save arrays \
    --threads 1
for case in "arrays:6" "tested:9"; do
    run eval --load arrays --data safetensors:${case%:*}.safetensors
    [ "$(field samples < out.txt)" = ${case#*:} ] && [ "$(field split < out.txt)" = test ] ||
        fail "arrays of a test set: $case: $(cat out.txt)"
done
run eval --load arrays --data safetensors:arrays.safetensors --split all
[ "$(field samples < out.txt)" = 26 ] || fail "all arrays: $(cat out.txt)"
head -c 60 new/light/ne03.png > cut.png && mv cut.png new/light/ne03.png
for command in eval predict; do expect 2 "new/light/ne03.png is damaged" "$LOCKSTEP" $command --load pictures --data \
    folder:new; done
expect 2 "image files and --split are mutually exclusive" "$LOCKSTEP" predict --load pictures --split all other/dark
finish 0
