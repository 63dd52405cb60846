#!/usr/bin/env bash
# cli_new_data.sh - what people do after training: tables, texts, arrays and folders that lack classes, labels or
# columns, or have others, are read as those of training. Predictions of a part of the data are those of the same
# samples in all of it. What whole-number labels are.
# ctest: timeout 300, ranks 2
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
train() { "$LOCKSTEP" train --model mlp --hidden 8 --batch 12 --epochs 3 --threads 1 --seed 3 "$@"; }

# Predictions of the samples with the given numbers of whole.json, without their numbers: chosen NUMBER…
chosen() {
    for i in "$@"; do sed -n "$((i + 1))p" whole.json; done | sed 's/"index": [0-9]*, //; s/"file": "[^"]*", //'
}
# predicted DATA [OPTION…]: the predictions of a data set, in the same form.
predicted() {
    local data=$1
    shift
    "$LOCKSTEP" predict --load run --threads 1 --json --data "$data" "$@" 2> err.txt |
        sed 's/"index": [0-9]*, //; s/"file": "[^"]*", //'
}
# same NAME WANTED DATA [OPTION…]
same() {
    local name=$1 wanted=$2 got
    got=$(predicted "${@:3}")
    [ -n "$wanted" ] && [ "$got" = "$wanted" ] || complain "$name: $got
   expected: $wanted; $(cat err.txt)"
}
without_label() { sed 's/"label": -*[0-9]*, //'; }

# ---- a table ----
awk 'BEGIN { print "a,b,c,kind"; for (i = 0; i < 60; i++) { k = i % 3; r = (i * 7919) % 101 / 101
    printf "%.4f,%.4f,%.4f,%s\n", k + r, r - k, r * k, k == 0 ? "ant" : k == 1 ? "bee" : "cow" } }' > table.csv
for ranks in 1 2; do
    rm -rf run
    expect 0 "" train -n $ranks --data csv:table.csv --save run
done
"$LOCKSTEP" predict --load run --data csv:table.csv --threads 1 --json > whole.json 2> err.txt ||
    complain "$(cat err.txt)"
rows() { head -1 table.csv; for i in "$@"; do sed -n "$((i + 2))p" table.csv; done; }
rows 1 4 2 > lacks.csv # no ant
same "without a class" "$(chosen 1 4 2)" csv:lacks.csv
rows 5 > one.csv
same "one row" "$(chosen 5)" csv:one.csv
rows 2 5 8 > cows.csv
same "one class" "$(chosen 2 5 8)" csv:cows.csv
rows 1 4 2 | cut -d, -f1-3 > unlabelled.csv
same "without the label" "$(chosen 1 4 2 | without_label)" csv:unlabelled.csv
rows 1 4 2 | awk -F, -v OFS=, '{ print $3, NR == 1 ? "id" : NR, $4, $1, $2 }' > shuffled.csv
same "columns in another order" "$(chosen 1 4 2)" csv:shuffled.csv
rows 1 4 | sed '3s/[a-z]*$//' > empty.csv
same "an empty label" "$(chosen 1; chosen 4 | without_label)" csv:empty.csv
expect 2 "line 3, column 4 \('kind'\): missing value" "$LOCKSTEP" eval --load run --data csv:empty.csv
expect 2 "unlabelled.csv has no column 'kind' for the label" "$LOCKSTEP" eval --load run --data csv:unlabelled.csv
rows 1 2 4 | sed '3s/cow/crow/' > crow.csv
pattern="crow.csv: line 3, column 4 \('kind'\): 'crow' is not a class of the training data "
pattern+="\(did you mean 'cow'\?\): expected one of 'ant', 'bee', 'cow'; --unknown-label skip"
for command in eval predict; do
    expect 2 "$pattern" "$LOCKSTEP" $command --load run --data csv:crow.csv
done
same "without unknown classes" "$(chosen 1 4)" csv:crow.csv --unknown-label skip
grep -q "crow.csv: 1 of 3 samples have labels that the training data does not have ('crow'), and are left out" err.txt \
    || complain "skipped rows: $(cat err.txt)"
# The loss of a part of the table is the mean of its rows' losses.
for part in lacks one cows; do
    expect 0 "" "$LOCKSTEP" eval --load run --data csv:$part.csv --threads 1 --json
    loss=$(sed -n 's/.*"loss": \([-0-9.e]*\).*/\1/p' out.txt)
    predicted csv:$part.csv | awk -v loss="$loss" '{
        match($0, /"label": [0-9]+/); k = substr($0, RSTART + 9, RLENGTH - 9)
        sub(/.*"probabilities": \[/, ""); sub(/\].*/, "")
        split($0, p, ", "); sum -= log(p[k + 1]); n++ }
        END { d = sum / n - loss; exit !(n > 0 && loss != "" && d < 1e-5 && d > -1e-5) }' ||
        complain "eval of $part.csv: $(cat out.txt err.txt)"
done
# Resuming reads by the record, too, on every rank.
for ranks in 1 2; do
    rm -rf again && cp -r run again
    expect 0 "" "$LOCKSTEP" train -n $ranks --resume again --save more$ranks --data csv:shuffled.csv --batch 3 \
        --epochs 30 --threads 1
    expect 2 "'crow' is not a class of the training data" "$LOCKSTEP" train -n $ranks --resume again --save other \
        --data csv:crow.csv --threads 1
done

# ---- whole numbers in a table ----
# numbers NAME LABELS ROWS: a table with each label in so many rows
numbers() {
    awk -v labels="$2" -v rows="$3" 'BEGIN { n = split(labels, l, " "); print "x,y,value"
        for (r = 0; r < rows; r++) for (i = 1; i <= n; i++) printf "%d,%d,%s\n", r % 7, i, l[i] }' > "$1.csv"
}
numbers price "100000 250000 618440 99" 20
pattern="price.csv: the label, column 3 \('value'\), has 4 different whole numbers; .* numbers to predict; "
pattern+="--loss cross_entropy treats them as classes"
expect 0 "$pattern" train --data csv:price.csv --label value --save run-price
expect 0 "" "$LOCKSTEP" info run-price
grep -q -- "--loss mse" out.txt && grep -Eq "target f32" out.txt || complain "a regression is recorded: $(cat out.txt)"
numbers stars "3 1 5 2 4" 12
pattern="stars.csv: the label, column 3 \('value'\), has 5 different whole numbers, 1 to 5: treated as classes; "
pattern+="--loss mse predicts them as numbers"
expect 0 "$pattern" train --data csv:stars.csv --save run-stars
[ "$(grep -c 'treated as' err.txt)" = 1 ] || complain "said more than once: $(cat err.txt)"
expect 0 "" "$LOCKSTEP" info run-stars
grep -q -- "--loss cross_entropy" out.txt && grep -q "5 classes" out.txt ||
    complain "classes are recorded: $(cat out.txt)"
expect 0 "" "$LOCKSTEP" predict --load run-stars --data csv:stars.csv --csv --threads 1
awk -F, 'NR > 1 && $4 != $3 + 1 { exit 1 }' out.txt || complain "class k of 1 to 5 is called k + 1: $(cat out.txt)"
numbers few "3 5" 1
expect 0 "" "$LOCKSTEP" predict --load run-stars --data csv:few.csv --csv --threads 1
[ "$(cut -d, -f2 out.txt | tr '\n' ' ')" = "label 2 4 " ] || complain "two of the five classes: $(cat out.txt)"
expect 0 "" "$LOCKSTEP" eval --load run-price --data csv:few.csv --threads 1 # two whole numbers, and still a regression
grep -q "mae" out.txt || complain "a regression: $(cat out.txt)"
expect 2 "unknown-label applies only to class labels; this model predicts numbers" "$LOCKSTEP" eval --load \
    run-price --data csv:few.csv --unknown-label skip
expect 2 "'100000' is not a class of the training data: expected one of '1', '2', '3', '4', '5'" "$LOCKSTEP" \
    eval --load run-stars --data csv:price.csv --unknown-label refuse
expect 0 "" train --data csv:price.csv --loss cross_entropy --save run-forced
grep -q "treated as" err.txt && complain "nothing was inferred: $(cat err.txt)"
expect 0 "" "$LOCKSTEP" info run-forced
grep -q "4 classes" out.txt || complain "classes by --loss: $(cat out.txt)"
expect 0 "" train --data csv:stars.csv --loss l1
awk 'BEGIN { print "x,y,value"; for (i = 0; i < 40; i++) printf "%d,%d,%.1f\n", i % 7, i % 5, i / 2 + 0.5 }' > real.csv
expect 0 "" train --data csv:real.csv --save run-real
expect 0 "" "$LOCKSTEP" eval --load run-real --data csv:stars.csv # whole numbers where training had fractions

# ---- texts ----
awk 'BEGIN { for (i = 0; i < 40; i++) printf "{\"body\": \"%s number %d\", \"mood\": \"%s\"}\n",
    i % 2 ? "good" : "bad", i, i % 2 ? "happy" : "angry" }' > texts.jsonl
expect 0 "" "$LOCKSTEP" train --model encoder --layers 1 --heads 2 --width 16 --context 16 --data jsonl:texts.jsonl \
    --text-field body --label mood --tokenizer byte --steps 4 --batch 8 --threads 1 --save run-text
rm -rf run && mv run-text run
"$LOCKSTEP" predict --load run --data jsonl:texts.jsonl --threads 1 --json > whole.json 2> err.txt ||
    complain "$(cat err.txt)"
[ "$(wc -l < whole.json)" = 40 ] || complain "texts: $(cat err.txt)"
sed -n '2p;4p' texts.jsonl > happy.jsonl
same "texts of one class" "$(chosen 1 3)" jsonl:happy.jsonl
sed -n '2p;4p' texts.jsonl | sed 's/, "mood".*}/}/' > bare.jsonl
same "texts without a label" "$(chosen 1 3 | without_label)" jsonl:bare.jsonl
sed -n '2p;4p' texts.jsonl | sed '2s/happy/hapy/' > hapy.jsonl
expect 2 "hapy.jsonl: line 2: 'hapy' is not a class of the training data \(did you mean 'happy'\?\)" "$LOCKSTEP" eval \
    --load run --data jsonl:hapy.jsonl
same "texts of known classes" "$(chosen 1)" jsonl:hapy.jsonl --unknown-label skip
expect 2 "bare.jsonl: line 1 has no field 'mood'" "$LOCKSTEP" eval --load run --data jsonl:bare.jsonl

# ---- arrays ----
# npy FILE TYPE SHAPE: numbers of standard input, one byte each in octal, with a header
npy() {
    printf '\223NUMPY\001\000\166\000%-117s\n' "{'descr': '$2', 'fortran_order': False, 'shape': ($3), }" > "$1"
    cat >> "$1"
}
printf '\001\002\003\004\005\006\007\010' | npy x.npy '|i1' '4, 2'
printf '\000\001\002\000' | npy y.npy '|u1' '4,'
rm -rf run
expect 0 "" train --data npy:x.npy,y.npy --batch 2 --save run
"$LOCKSTEP" predict --load run --data npy:x.npy,y.npy --threads 1 --json > whole.json 2> err.txt ||
    complain "$(cat err.txt)"
printf '\007\010\001\002' | npy x0.npy '|u1' '2, 2' # bytes, which were i8
printf '\000\000' | npy y0.npy '|u1' '2,'
same "arrays of one class" "$(chosen 3 0)" npy:x0.npy,y0.npy
same "arrays without labels" "$(chosen 3 0 | without_label)" npy:x0.npy
printf '\000\003' | npy y3.npy '|u1' '2,'
expect 2 "y3.npy: row 1: '3' is not a class of the training data: classes are 0 to 2" "$LOCKSTEP" eval --load run \
    --data npy:x0.npy,y3.npy
same "arrays of known classes" "$(chosen 3)" npy:x0.npy,y3.npy --unknown-label skip
expect 2 "npy:x0.npy has no labels, so there is no loss" "$LOCKSTEP" eval --load run --data npy:x0.npy

# ---- a folder ----
if [ -d "$SOURCE_DIR/test/golden/images" ] && "$LOCKSTEP" info 2> /dev/null | grep -q "png"; then
    png=$(find "$SOURCE_DIR/test/golden/images" -name '*.png' | sort | head -1)
    for class in cat dog emu; do mkdir -p "pictures/$class" && cp "$png" pictures/$class/1.png &&
        cp "$png" pictures/$class/2.png; done
    rm -rf run
    expect 0 "" train --data folder:pictures --size 8,8 --batch 2 --save run
    "$LOCKSTEP" predict --load run --data folder:pictures --threads 1 --json > whole.json 2> err.txt ||
        complain "$(cat err.txt)"
    mkdir -p new/emu && cp "$png" new/emu/
    same "a folder with one class" "$(chosen 4)" folder:new
    mkdir -p new/fox && cp "$png" new/fox/
    expect 2 "folder:new: 'fox' is not a class of the training data" "$LOCKSTEP" eval --load run --data folder:new
    same "a folder with other classes" "$(chosen 4)" folder:new --unknown-label skip
    grep -q "1 images in 1 subdirectory that the training data does not have ('fox') are left out" err.txt ||
        complain "skipped images: $(cat err.txt)"
else
    echo "no images: folders are not tested"
fi

# ---- predictions as CSV ----
awk 'BEGIN { print "x,kind"
    for (i = 0; i < 8; i++) printf "%d,\"%s\"\n", i, i % 2 ? "red \033[31m, hot" : "say \"\"no\"\"" }' > colours.csv
rm -rf run
expect 0 "" train --data csv:colours.csv --batch 4 --save run
expect 0 "" "$LOCKSTEP" predict --load run --data csv:colours.csv --csv --threads 1 --top 2
grep -qF "$(printf '"red \033[31m, hot"')" out.txt && grep -qF '"say ""no"""' out.txt ||
    complain "names in CSV as they are, quoted: $(cat -v out.txt)"
if command -v script > /dev/null; then
    script -qec "'$LOCKSTEP' predict --load run --data csv:colours.csv --csv --threads 1 --top 2" /dev/null < \
        /dev/null > terminal.txt 2>&1
    grep -qF 'red \x1b[31m, hot' terminal.txt ||
        complain "control characters are escaped on a terminal: $(cat -v terminal.txt)"
    grep -q "$(printf '\033')" terminal.txt && complain "a control character on a terminal: $(cat -v terminal.txt)"
fi

[ "$wrong" = 0 ] && echo "ok"
exit "$((wrong > 0))"
