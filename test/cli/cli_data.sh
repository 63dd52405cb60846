#!/usr/bin/env bash
# cli_data.sh - the user's own files at the command: each kind of --data trains, with the same numbers at any number of
# ranks and after a stop in the middle of an epoch; mistakes in files get one sentence and exit status 2.
# ctest: timeout 400, ranks 3
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

# refuse PATTERN DATA [OPTION…]: `train` refuses the data in one line with status 2, with one rank and with two.
refuse() {
    local pattern=$1 data=$2
    shift 2
    for ranks in "" "-n 2"; do
        # shellcheck disable=SC2086
        expect 2 "^lockstep train: .*$pattern" "$LOCKSTEP" train $ranks --model mlp --batch 4 --steps 1 --threads 1 \
            "$@" --data "$data"
        [ "$(wc -l < err.txt)" = 1 ] || complain "$data $ranks: more than one line: $(cat err.txt)"
    done
}
# same_everywhere NAME OPTION…: a run with --reproducible ends in the same weights with 1, 2 and 3 ranks, and when it is
# stopped in the middle of an epoch and continued with another number of ranks.
same_everywhere() {
    local name=$1 first other
    shift
    first=$("$LOCKSTEP" train "$@" --threads 1 --reproducible --json 2> err.txt | field hash)
    [ -n "$first" ] || { complain "$name: $(cat err.txt)"; return; }
    for ranks in 2 3; do
        other=$("$LOCKSTEP" train -n $ranks "$@" --threads 1 --reproducible --json 2> err.txt | field hash)
        [ "$other" = "$first" ] || complain "$name: $ranks ranks gave $other, one rank $first; $(cat err.txt)"
    done
    "$LOCKSTEP" train -n 2 "$@" --threads 1 --reproducible --steps 2 --save "$name" > /dev/null 2> err.txt ||
        complain "$name: $(cat err.txt)"
    other=$("$LOCKSTEP" train -n 3 "$@" --threads 1 --reproducible --save "$name" --resume auto --json 2> err.txt |
        field hash)
    [ "$other" = "$first" ] || complain \
        "$name: resumed in the middle of an epoch: $other, otherwise $first; $(cat err.txt)"
}
arrays=$SOURCE_DIR/test/golden/arrays

# A header of a .npy file: npy_header DESCR SHAPE
npy_header() { printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '$1', 'fortran_order': False, 'shape': $2, }"; }
# Numbers of 2 and 4 bytes, the lowest first.
little() { local i; for ((i = 0; i < $1; i++)); do printf "\\x$(printf %02x $(($2 >> 8 * i & 255)))"; done; }
# A zip of deflated members: gzip's trailer has the checksum and the size that a zip needs. make_zip FILE MEMBER…
make_zip() {
    local out=$1 member count=0 stored offset
    : > zip.body
    : > zip.directory
    for member in "${@:2}"; do
        gzip -nc "$member" > zip.gz
        stored=$(($(wc -c < zip.gz) - 18)) offset=$(wc -c < zip.body) count=$((count + 1))
        {
            printf '\x14\0\0\0\x08\0\0\0\0\0'; tail -c 8 zip.gz | head -c 4
            little 4 $stored; tail -c 4 zip.gz; little 2 ${#member}; printf '\0\0'
        } > zip.sizes
        { printf 'PK\3\4'; cat zip.sizes; printf %s "$member"; tail -c +11 zip.gz | head -c $stored; } >> zip.body
        {
            printf 'PK\1\2\x14\0'; cat zip.sizes; printf '\0\0\0\0\0\0\0\0\0\0'
            little 4 "$offset"; printf %s "$member"
        } >> zip.directory
    done
    {
        cat zip.body zip.directory; printf 'PK\5\6\0\0\0\0'; little 2 $count; little 2 $count
        little 4 "$(wc -c < zip.directory)"; little 4 "$(wc -c < zip.body)"; printf '\0\0'
    } > "$out"
}
# A table of four numbers and a label, in which classes can be told apart: table ROWS
table() {
    awk -v rows="$1" 'BEGIN { print "a,b,c,d,kind"; for (i = 0; i < rows; i++) { k = i % 3; r = (i * 7919) % 101 / 101
        printf "%.4f,%.4f,%.4f,%.4f,%s\n", k + r, r - k, r * k, (i * 31) % 17 / 17,
            k == 0 ? "ant" : k == 1 ? "bee" : "cow" } }'
}

# ---- tables and arrays ----

table 120 > table.csv
awk -F, 'NR > 1 { printf "%s;%s;%s\r\n", $1, $2, $1 - 2.5 * $2 + 0.25 }' table.csv > prices.csv
awk -F, 'NR > 1 { print ($5 == "ant" ? 0 : $5 == "bee" ? 1 : 2) "\t" $1 "\t" $2 }' table.csv > numbers.tsv
gzip -c table.csv > table.csv.gz
{ npy_header '|u1' '(60, 8, 8)'; seq 1 9999 | gzip -n | head -c 3840; } > images.npy
{ npy_header '|u1' '(60,)'; for i in $(seq 60); do printf "\\x0$((i % 5))"; done; } > labels.npy
{ printf '\0\0\010\003\0\0\0\074\0\0\0\010\0\0\0\010'; tail -c 3840 images.npy; } > images.idx
{ printf '\0\0\010\001\0\0\0\074'; tail -c 60 labels.npy; } > labels.idx

cp images.npy x.npy
cp labels.npy y.npy
make_zip arrays.npz x.npy y.npy
header='{"image":{"dtype":"U8","shape":[60,8,8],"data_offsets":[0,3840]},'
header+='"label":{"dtype":"U8","shape":[60],"data_offsets":[3840,3900]}}'
{ little 8 ${#header}; printf %s "$header"; tail -c 3840 images.npy; tail -c 60 labels.npy; } > arrays.safetensors

mlp="--model mlp --hidden 8 --batch 12 --epochs 2 --seed 3"
# shellcheck disable=SC2086
{
    same_everywhere csv $mlp --data csv:table.csv
    same_everywhere csv-holdout $mlp --data csv:table.csv.gz --holdout 0.25
    same_everywhere regression $mlp --data csv:prices.csv
    same_everywhere npy $mlp --data npy:images.npy,labels.npy --holdout 0.2 --flip 0.5
    same_everywhere npz $mlp --data npz:arrays.npz
    same_everywhere safetensors $mlp --data safetensors:arrays.safetensors
    same_everywhere idx $mlp --data idx:images.idx,labels.idx

    # The same samples from two kinds of files give the same weights.
    a=$("$LOCKSTEP" train $mlp --data npy:images.npy,labels.npy --json 2> err.txt | field hash)
    for data in idx:images.idx,labels.idx npz:arrays.npz safetensors:arrays.safetensors; do
        b=$("$LOCKSTEP" train $mlp --data $data --json 2> err.txt | field hash)
        [ -n "$a" ] && [ "$a" = "$b" ] || complain "npy gave $a, $data $b"
    done
    a=$("$LOCKSTEP" train $mlp --data csv:table.csv --json 2> err.txt | field hash)
    b=$("$LOCKSTEP" train $mlp --data csv:table.csv.gz --label kind --header yes --json 2> err.txt | field hash)
    [ -n "$a" ] && [ "$a" = "$b" ] || complain "csv gave $a, csv.gz $b"

    # Features that are integers, in any type, are numbers for a built-in model.
    a=$("$LOCKSTEP" train $mlp --data "npy:$arrays/i4.npy,$arrays/y.npy" --json 2> err.txt | field hash)
    for type in i1 u2 i2 u4 i8; do
        b=$("$LOCKSTEP" train $mlp --data "npy:$arrays/$type.npy,$arrays/y.npy" --json 2> err.txt | field hash)
        [ -n "$a" ] && [ "$a" = "$b" ] || complain "$type gave '$b', i4 '$a': $(cat err.txt)"
    done

    # Without a test set a run says so once and trains; `eval` takes all rows of a table that it is given.
    for ranks in "" "-n 2"; do
        expect 0 "no test set" "$LOCKSTEP" train $ranks $mlp --data csv:table.csv
        [ "$(grep -c 'no test set' err.txt)" = 1 ] || complain "'no test set' is not said once: $(cat err.txt)"
    done
    expect 0 "" "$LOCKSTEP" train $mlp --data csv:table.csv --label kind --holdout 0.25 --save classes --lr 0.05 \
        --epochs 20
    grep -q "accuracy" err.txt || complain "no accuracy on the rows held out: $(cat err.txt)"
    expect 0 "" "$LOCKSTEP" eval --load classes --model mlp --hidden 8 --data csv:table.csv --holdout 0.25
    expect 0 "the model was trained on csv:table.csv, except for the part that was held out" "$LOCKSTEP" eval \
        --load classes --model mlp --hidden 8 --data csv:table.csv
    grep -q '(all 120 samples)' out.txt || complain "all rows: $(cat out.txt)"
    expect 0 "" "$LOCKSTEP" train $mlp --data csv:table.csv --label kind --save all
    expect 2 "csv:table.csv has no test set: --holdout" "$LOCKSTEP" eval --load all
    # Columns are found by their names, in any order and between others; one that is missing is named.
    awk -F, -v OFS=, '{ print NR == 1 ? "id" : NR, $5, $2, $1, $4, $3 }' table.csv > swapped.csv
    awk -F, -v OFS=, '{ $1 = NR == 1 ? "first" : $1; print }' table.csv > renamed.csv
    "$LOCKSTEP" eval --load all --data csv:table.csv > own.txt 2> err.txt || complain "$(cat err.txt)"
    expect 0 "swapped.csv: 1 column that the model was not trained on is not used: 'id'" "$LOCKSTEP" eval --load all \
        --data csv:swapped.csv
    cmp -s out.txt own.txt || complain "columns in another order: $(cat out.txt), expected $(cat own.txt)"
    for run in "eval --load all" "predict --load all" "train --resume all"; do
        expect 0 "" "$LOCKSTEP" $run --data csv:swapped.csv
        expect 2 "renamed.csv has no column 'a'" "$LOCKSTEP" $run --data csv:renamed.csv
    done
    # Rows without the label's column are predicted as those with it; a table that has it, but not all features, is
    # refused.
    cut -d, -f1-4 table.csv > rows.csv
    tail -n +2 rows.csv > bare.csv
    cut -d, -f2-5 table.csv > fewer.csv
    "$LOCKSTEP" predict --load classes --data csv:table.csv --count 120 --json 2> err.txt |
        sed 's/ "label": [0-9]*,//' > labelled.json
    for rows in rows bare; do
        expect 0 "" "$LOCKSTEP" predict --load classes --data csv:$rows.csv --count 120 --json
        [ -s labelled.json ] && cmp -s out.txt labelled.json ||
            complain "$rows without a label: $(head -2 out.txt labelled.json)"
    done
    # The recorded label is that of another table too, where it has the column: by name, and by number.
    awk -F, -v OFS=, 'NR == 1 { print $5, $1, $2, $3, $4; next }
        { print ($5 == "ant" ? 0 : $5 == "bee" ? 1 : 2), $1, $2, $3, $4 }' table.csv > first.csv
    cp first.csv again.csv
    for label in kind 1; do
        expect 0 "" "$LOCKSTEP" train $mlp --data csv:first.csv --label $label --save "first-$label" --steps 5
        "$LOCKSTEP" predict --load "first-$label" --count 9 --json > own.json 2> err.txt || complain "$(cat err.txt)"
        expect 0 "" "$LOCKSTEP" predict --load "first-$label" --data csv:again.csv --count 9 --json
        cmp -s out.txt own.json || complain "--label $label of another table: $(head -2 out.txt own.json)"
    done
    expect 2 "fewer.csv has no column 'a'" "$LOCKSTEP" predict --load classes --data csv:fewer.csv
    expect 2 "freeze and --group leave mlp without trainable parameters" \
        "$LOCKSTEP" train $mlp --data csv:table.csv --freeze '*'
    # More classes than the weights have outputs.
    table 12 | awk '{ sub(/ant/, "eel" int(NR / 3) % 3); print }' > more.csv
    expect 2 "3.8.*5.8|classes|outputs" "$LOCKSTEP" train $mlp --data csv:more.csv --init classes
    expect 2 "3.8.*5.8|classes|outputs" "$LOCKSTEP" eval --load classes --model mlp --hidden 8 --data csv:more.csv \
        --holdout 0.5
    # The label's column, by name and by number, and a table without names.
    expect 0 "" "$LOCKSTEP" train $mlp --data csv:numbers.tsv --label 1 --header no
    expect 0 "" "$LOCKSTEP" train $mlp --data csv:table.csv --label kind --header auto
    # Numbers with a fraction are regression, and cross_entropy is refused for them.
    expect 0 "" "$LOCKSTEP" train $mlp --data csv:prices.csv --loss l1
    expect 2 "loss cross_entropy needs one class number per sample, .*; the labels of csv:prices.csv are not integers" \
        "$LOCKSTEP" train $mlp --data csv:prices.csv --loss cross_entropy
    expect 0 "" "$LOCKSTEP" train $mlp --data csv:numbers.tsv --label 1 --loss mse
    expect 0 "" "$LOCKSTEP" train $mlp --data "npy:$arrays/f4.npy,$arrays/y_multi.npy" --batch 4 --loss bce
    # Features are neither shifted nor divided unless that is said.
    a=$("$LOCKSTEP" train $mlp --data csv:table.csv --mean 1 --json 2> err.txt | field hash)
    b=$("$LOCKSTEP" train $mlp --data csv:table.csv --mean 1 --std 1 --json 2> err.txt | field hash)
    [ -n "$a" ] && [ "$a" = "$b" ] || complain "--mean 1 gave $a, --mean 1 --std 1 $b"
    a=$("$LOCKSTEP" train $mlp --data csv:table.csv --std 2 --json 2> err.txt | field hash)
    b=$("$LOCKSTEP" train $mlp --data csv:table.csv --mean 0 --std 2 --json 2> err.txt | field hash)
    [ -n "$a" ] && [ "$a" = "$b" ] || complain "--std 2 gave $a, --mean 0 --std 2 $b"
    a=$("$LOCKSTEP" train $mlp --data npy:images.npy,labels.npy --mean 0.25 --json 2> err.txt | field hash)
    b=$("$LOCKSTEP" train $mlp --data npy:images.npy,labels.npy --mean 0.25 --std 0.5 --json 2> err.txt | field hash)
    [ -n "$a" ] && [ "$a" = "$b" ] || complain "images: --mean 0.25 gave $a, --mean 0.25 --std 0.5 $b"

    # Several labels for each sample, as whole numbers and as floating-point numbers, are the same targets of bce.
    for i in $(seq 60); do for j in 1 2 3; do [ $((i % (j + 1))) = 0 ] && echo 1 || echo 0; done; done > hot.txt
    { npy_header '|u1' '(60, 3)'; while read -r bit; do printf "\\x0$bit"; done < hot.txt; } > hot.npy
    {
        npy_header '<f4' '(60, 3)'
        while read -r bit; do [ "$bit" = 1 ] && printf '\0\0\x80\x3f' || printf '\0\0\0\0'; done < hot.txt
    } > hot_float.npy
    a=$("$LOCKSTEP" train $mlp --data npy:images.npy,hot.npy --loss bce --save labels --json 2> err.txt | field hash)
    b=$("$LOCKSTEP" train $mlp --data npy:images.npy,hot_float.npy --loss bce --json 2> err.txt | field hash)
    [ -n "$a" ] && [ "$a" = "$b" ] || complain \
        "labels as whole numbers gave $a, as floating-point numbers $b: $(cat err.txt)"
    same_everywhere several-labels $mlp --data npy:images.npy,hot.npy --loss bce
    expect 0 "" "$LOCKSTEP" eval --load labels --holdout 0.5
    expect 0 "" "$LOCKSTEP" predict --load labels --count 2 --json

    # Two classes with one output: predict has the names and the probabilities of both.
    awk -F, 'NR == 1 || $5 != "cow"' table.csv > two.csv
    expect 0 "" "$LOCKSTEP" train $mlp --data csv:two.csv --loss bce --lr 0.05 --epochs 30 --save binary --holdout 0.25
    expect 0 "" "$LOCKSTEP" predict --load binary --data csv:two.csv --count 80 --top 2
    [ "$(grep -cE '^ *[0-9]+  (ant|bee) [0-9.]+ %, (ant|bee) [0-9.]+ %  right$' out.txt)" -gt 70 ] ||
        complain "two classes: $(cat out.txt)"
    expect 0 "" "$LOCKSTEP" predict --load binary --data csv:two.csv --count 2 --csv
    grep -qE '^[01],[01],[01],(ant|bee),(0.[5-9]|1)' out.txt || complain "two classes: $(cat out.txt)"

    # A test set in the file need not have all classes. Names of arrays are compared without case.
    { npy_header '|u1' '(4, 8, 8)'; tail -c 3840 images.npy | head -c 256; } > x_test.npy
    { npy_header '|u1' '(4,)'; printf '\0\0\0\0'; } > y_test.npy
    cp images.npy x_train.npy && cp labels.npy y_train.npy && cp labels.npy Kind.npy
    make_zip parts.npz x_train.npy y_train.npy x_test.npy y_test.npy
    make_zip named.npz x.npy Kind.npy
    expect 0 "test loss" "$LOCKSTEP" train $mlp --data npz:parts.npz --log parts.jsonl
    grep -q '"event": "evaluated".*"samples": 4,' parts.jsonl || complain "the test set of the file: $(cat parts.jsonl)"
    expect 0 "" "$LOCKSTEP" train $mlp --data npz:named.npz --label kind
}

# Every augmentation: the same numbers at any number of ranks; and what the data cannot do.
augment="--random-resized-crop 0.3 --rotate 20 --cutout 3 --mixup 0.4"
# shellcheck disable=SC2086
{
    same_everywhere augment $mlp --data npy:images.npy,labels.npy --holdout 0.2 $augment --color-jitter 0.4,0.4
    same_everywhere colors --model cnn --data synthetic:3x8x8,count=60 --batch 12 --epochs 2 $augment --color-jitter \
        0.4,0.4,0.4,0.1 --label-smoothing 0.1
}
refuse 'color jitter of saturation or hue needs images of 3 channels' npy:images.npy,labels.npy --color-jitter 0,0,0.1
refuse 'augmentation needs images' csv:table.csv --rotate 5
refuse 'mixup needs a field "label"' csv:prices.csv --mixup 0.2
refuse 'random-resized-crop takes the smallest share' npy:images.npy,labels.npy --random-resized-crop 0.5,0.2
refuse 'color-jitter has 5 numbers' npy:images.npy,labels.npy --color-jitter 1,1,1,0.1,1

# Mistakes: the sentence names the file and the place in it.
table 8 | sed '5s/,[^,]*$//' > ragged.csv
refuse 'ragged.csv: line 5 has 4 fields separated by commas, but line 1 has 5' csv:ragged.csv
table 8 | sed '4s/,[^,]*,/,,/' > missing.csv
refuse "missing.csv: line 4, column 2 \('b'\): missing value" csv:missing.csv
table 8 | sed '6s/,[^,]*,/,NaN,/' > nan.csv
refuse "nan.csv: line 6, column 2 \('b'\): missing value \('NaN'\)" csv:nan.csv
table 8 | sed '6s/,[^,]*,/,high,/' > text.csv
refuse "text.csv: line 6, column 2 \('b'\): 'high' is not a number" csv:text.csv
refuse "no column 'knd' for the label \(did you mean 'kind'" csv:table.csv --label knd
refuse "no column '9' for the label: it has a, b, c, d, kind; name one of these, or give its number from 1 to 5" \
    csv:table.csv --label 9
refuse 'regression needs numbers' csv:table.csv --loss mse
refuse 'has no labels: expected a field "label" or "target"' "npy:$arrays/f4.npy"
refuse 'Fortran order: save np.ascontiguousarray' "npy:$arrays/fortran.npy,$arrays/y.npy"
refuse 'objects.npy holds Python objects .*allow_pickle=False' "npy:$arrays/objects.npy,$arrays/y.npy"
refuse 'strings.npy holds strings' "npy:$arrays/f4.npy,$arrays/strings.npy"
refuse 'nan.npy: row 3 has a value that is NaN' "npy:$arrays/nan.npy,$arrays/y.npy"
refuse 'images.npy has 60 rows, but .*y.npy has 5' "npy:images.npy,$arrays/y.npy"
refuse 'loss cross_entropy needs one class number per sample, .*; the labels of .*y_fraction.npy are not integers' \
    "npy:$arrays/f4.npy,$arrays/y_fraction.npy" --loss cross_entropy
{ npy_header '|u1' '(2, 1, 1, 1, 1, 1, 1, 3)'; printf abcdef; } > deep.npy
refuse 'deep.npy has 8 axes: at most 6 are supported' npy:deep.npy
refuse 'hot.npy has 3 whole numbers as the label of each sample: use --loss bce' npy:images.npy,hot.npy
refuse 'loss bce needs targets from 0 to 1; csv:prices.csv has ' csv:prices.csv --loss bce
{ npy_header '|u1' '(60,)'; head -c 60 /dev/zero; } > weight.npy
make_zip weight.npz x.npy y.npy weight.npy
refuse 'the field "weight" of npz:weight.npz is u8 .*expected one floating-point number per sample' npz:weight.npz
head -c 3000 images.npy > cut.npy
refuse 'cut.npy is truncated: its header declares 3840 bytes of data, but 2872 follow it' npy:cut.npy,labels.npy
head -c 500 "$arrays/stored.npz" > cut.npz
refuse 'cut.npz is truncated' npz:cut.npz
head -c 500 "$arrays/data.safetensors" > cut.safetensors
refuse 'cut.safetensors: .*truncated' safetensors:cut.safetensors
head -c 2000 images.idx > cut.idx
refuse 'cut.idx is truncated|cut.idx has 2000 bytes' idx:cut.idx,labels.idx
refuse "nosuch.csv: No such file" csv:nosuch.csv
refuse "unknown data set: cvs \(did you mean csv\?\)" cvs:table.csv
refuse "unknown data set: nyp \(did you mean npy\?\)" nyp:images.npy,labels.npy
refuse "npy:X.npy,Y.npy" npy:
refuse "idx:IMAGES,LABELS" idx:images.idx

exit $((wrong > 0))
