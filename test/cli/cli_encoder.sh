#!/usr/bin/env bash
# cli_encoder.sh - texts with classes at the command: the field of labels, and the classes of a directory in Hugging
# Face's form, whose "id2label" numbers them, in any order; labels that are numbers; texts to predict; what is saved.
# ctest: label quick
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
loss() { # loss DIR FILE: of an evaluation
    expect 0 "" "$LOCKSTEP" eval --load "$1" --data "jsonl:$2" --batch 8 --threads 1 --json
    field loss < out.txt
}
classes() { # classes DIR FILE: predicted, in one line
    expect 0 "" "$LOCKSTEP" predict --load "$1" --data "jsonl:$2" --count 6 --threads 1 --csv
    grep -o 'pos\|neg' out.txt | tr '\n' ' '
}

for i in $(seq 20); do
    echo "{\"text\": \"good thing $i\", \"label\": \"pos\"}"
    echo "{\"text\": \"bad $i\", \"label\": \"neg\"}"
done > named.jsonl
sed 's/"pos"/"x"/; s/"neg"/"pos"/; s/"x"/"neg"/' named.jsonl > exchanged.jsonl
sed 's/"pos"/1/; s/"neg"/0/' named.jsonl > numbers.jsonl
sed 's/, "label".*/}/' named.jsonl > bare.jsonl
grep pos named.jsonl > one.jsonl
encoder="--model encoder --layers 1 --heads 2 --width 16 --context 24 --tokenizer byte --batch 8 --steps 40 --lr 0.01"
encoder="$encoder --threads 1 --eval-every -1"

# ---- without --label it is the field "label" ----
expect 0 "" "$LOCKSTEP" train $encoder --data jsonl:named.jsonl --save run
grep -q '"0": "neg"' run/config.json || complain "classes: $(cat run/config.json)"
expect 2 "line 1 has no field 'label': it has 'text'; choose the field with --label" "$LOCKSTEP" train $encoder --data \
    jsonl:bare.jsonl
expect 0 "" "$LOCKSTEP" train --resume auto --save run --steps 41
whole=$(loss run named.jsonl)

# ---- a directory without a record: its config.json has the classes ----
plain() {
    mkdir "$1" && cp -L run/model.safetensors run/tokenizer.json run/tokenizer_config.json "$1" &&
        cp -L run/config.json "$1"
}
plain theirs
[ "$(loss theirs named.jsonl)" = "$whole" ] && [ -n "$whole" ] ||
    complain "evaluated as $(loss theirs named.jsonl), by the record $whole"
[ "$(loss theirs numbers.jsonl)" = "$whole" ] || complain "numbers as labels: $(loss theirs numbers.jsonl), not $whole"
loss theirs one.jsonl > /dev/null
sed 's/"pos"/"other"/' named.jsonl > other.jsonl
expect 2 "'other'.*expected one of 'neg', 'pos'" "$LOCKSTEP" eval --load theirs --data jsonl:other.jsonl --threads 1
[ "$(classes theirs bare.jsonl)" = "$(classes run bare.jsonl)" ] && [ -n "$(classes theirs bare.jsonl)" ] ||
    complain "predicted: $(classes theirs bare.jsonl), by the record $(classes run bare.jsonl)"

# ---- names in another order than the alphabet's, and the file's ----
plain swapped
rm -f swapped/config.json
names='"id2label": {"1": "neg", "0": "pos"}, "label2id": {"neg": 1, "pos": 0}'
sed '/"id2label"/,/}/d; /"label2id"/,/}/d; s/"problem_type"/'"$names"',\n  "problem_type"/' theirs/config.json \
    > swapped/config.json
grep -q '"1": "neg", "0": "pos"' swapped/config.json || complain "not swapped: $(cat swapped/config.json)"
[ "$(loss swapped exchanged.jsonl)" = "$whole" ] || complain "swapped: $(loss swapped exchanged.jsonl), not $whole"
[ "$(loss swapped numbers.jsonl)" = "$whole" ] ||
    complain "numbers are those of the model: $(loss swapped numbers.jsonl), not $whole"
[ "$(classes swapped bare.jsonl | sed 's/pos/x/g; s/neg/pos/g; s/x/neg/g')" = "$(classes run bare.jsonl)" ] ||
    complain "predicted, swapped: $(classes swapped bare.jsonl)"
expect 0 "" "$LOCKSTEP" train --init swapped --data jsonl:named.jsonl --batch 8 --steps 1 --lr 0 --threads 1 --save \
    again
tr -d '\n ' < again/config.json | grep -q '"id2label":{"0":"pos","1":"neg"}' ||
    complain "saved classes: $(cat again/config.json)"
cmp -s swapped/model.safetensors again/model.safetensors || complain "weights changed with a rate of 0"
[ "$(loss again exchanged.jsonl)" = "$whole" ] || complain "saved again: $(loss again exchanged.jsonl), not $whole"

# ---- another head has the classes of the data ----
expect 0 "" "$LOCKSTEP" train --model swapped/config.json --init-partial swapped --data jsonl:named.jsonl --batch 8 \
    --steps 1 --threads 1 --save other
tr -d '\n ' < other/config.json | grep -q '"id2label":{"0":"neg","1":"pos"}' ||
    complain "a new head: $(cat other/config.json)"

# ---- classes without names: as many as the model has ----
for i in 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2; do echo \
    "{\"text\": \"word $i more\", \"label\": $i}"; done > three.jsonl
expect 0 "" "$LOCKSTEP" train $encoder --data jsonl:three.jsonl --save three --steps 2
mkdir unnamed && cp -L three/model.safetensors three/tokenizer.json three/tokenizer_config.json three/config.json \
    unnamed
grep -v ' 2}' three.jsonl > two.jsonl
expect 0 "" "$LOCKSTEP" eval --load unnamed --data jsonl:two.jsonl --threads 1 --json
expect 0 "" "$LOCKSTEP" predict --load unnamed --data jsonl:bare.jsonl --count 2 --threads 1
[ "$(wc -l < out.txt)" -ge 2 ] || complain "predicted without names: $(cat out.txt)"

# ---- options of a record can be typed ----
expect 0 "" "$LOCKSTEP" train --model llama --untied --layers 1 --heads 2 --width 16 --context 8 --data \
    text:named.jsonl --tokenizer byte --batch 2 --steps 1 --threads 1 --eval-every -1 --save llama
expect 0 " --untied --" "$LOCKSTEP" eval --load llama --threads 1
options=$(sed -n 's/.*from the record of llama: //p' err.txt)
# shellcheck disable=SC2086 # several words
expect 0 "" "$LOCKSTEP" plan $options
expect 0 "" "$LOCKSTEP" info llama
grep -q -- "--untied$" out.txt || complain "info: $(grep untied out.txt)"
exit $((wrong > 0))
