#!/usr/bin/env bash
# cli_record.sh - a checkpoint knows what it is: eval, predict, info and train --resume need nothing else; another model
# or other data is refused with both shown. Partial weights, frozen and grouped parameters, and the final rate of a
# schedule, from the shell.
# ctest: timeout 300, ranks 3
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

lockstep=$LOCKSTEP

# ---- eval, predict and info ----
mlp="--model mlp --hidden 24 --data synthetic:20,classes=5,count=300 --batch 48 --mean 0.1 --std 2 --dtype f64"
expect 0 "" "$lockstep" train $mlp --threads 1 --steps 20 --optimizer sgd --momentum 0.9 --lr 0.02 --save run --seed 4
expect 0 "" "$lockstep" eval --load run $mlp --threads 1 --json
explicit=$(cat out.txt)
pattern="from the record of run: --model mlp --hidden 24 .*--data synthetic:20,classes=5,count=300 --batch 48 "
pattern+="--mean 0.1 --std 2"
expect 0 "$pattern" "$lockstep" eval --load run --threads 1 --json
[ "$explicit" = "$(cat out.txt)" ] && [ -n "$(field loss < out.txt)" ] ||
    complain "eval from the record: $(cat out.txt), with options: $explicit"
"$lockstep" predict --load run $mlp --threads 1 --json > with.txt 2> /dev/null || complain "predict with options failed"
expect 0 "" "$lockstep" predict --load run --threads 1 --json
cmp -s with.txt out.txt && [ "$(wc -l < out.txt)" = 75 ] || complain "predict from the record: $(cat out.txt)"
expect 0 "" "$lockstep" eval --load run/step-00000020 --threads 1 --json
[ "$explicit" = "$(cat out.txt)" ] || complain "eval of a step's directory: $(cat out.txt)"

# The data that is recorded is seen from the directory of the run: elsewhere a note says so.
mkdir elsewhere
printf 'a,b,label\n1,2,x\n2,1,y\n3,5,x\n4,2,y\n' > few.csv
expect 0 "" "$lockstep" train --model mlp --data csv:few.csv --holdout 0.5 --steps 1 --batch 2 --threads 1 --save few
cd elsewhere || exit 1
expect 2 \
    "csv:few.csv is the data path recorded in ../few, relative to the directory of that run; give another path" \
    "$lockstep" eval --load ../few
expect 0 "" "$lockstep" eval --load ../few --data csv:../few.csv --holdout 0.5
cd "$work" || exit 1

# The formats of predict agree with each other.
"$lockstep" predict --load run --threads 1 --count 7 --first 2 --json --top 3 > top.json 2> err.txt ||
    complain "$(cat err.txt)"
expect 0 "" "$lockstep" predict --load run --threads 1 --count 7 --first 2 --csv --top 3
[ "$(head -1 out.txt)" = \
    "index,label,class_1,name_1,probability_1,class_2,name_2,probability_2,class_3,name_3,probability_3" ] ||
    complain "the names in CSV: $(head -1 out.txt)"
awk -F, 'NR > 1 { n++; if ($1 != NR || $5 < $8 || $8 < $11 || $5 > 1 || $11 < 0) exit 1 } END { exit n != 7 }' out.txt \
    || complain "CSV: $(cat out.txt)"
[ "$(field index < top.json)" = "$(tail -n +2 out.txt | cut -d, -f1)" ] &&
    [ "$(field label < top.json)" = "$(tail -n +2 out.txt | cut -d, -f2)" ] &&
    [ "$(field predicted < top.json)" = "$(tail -n +2 out.txt | cut -d, -f3)" ] ||
        complain "CSV: $(cat out.txt), JSON: $(cat top.json)"
if command -v python3 > /dev/null; then
    python3 - << 'END' || complain "predict --json: $(cat top.json)"
import json
for line in open("top.json"):
    d = json.loads(line)
    order = sorted(range(5), key=lambda i: -d["probabilities"][i])
    assert [t["class"] for t in d["top"]] == order[:3] and d["predicted"] == order[0], d
    assert abs(sum(d["probabilities"]) - 1) < 1e-12 and d["probability"] == d["probabilities"][order[0]], d
END
fi
expect 0 "" "$lockstep" predict --load run --threads 1 --count 2 --csv --top 9 # of 5 classes
awk -F, 'NF != 17 { exit 1 }' out.txt || complain "a CSV with more names than values: $(cat out.txt)"
expect 0 "" "$lockstep" predict --load run --threads 1 --count 2 --top 2
grep -Eq '^     0  [0-4] [0-9.]+ %, [0-4] [0-9.]+ %  (right|wrong)' out.txt || complain "predict: $(cat out.txt)"
expect 2 "json and --csv are mutually exclusive" "$lockstep" predict --load run --json --csv
expect 2 "first 75 is out of range: there are 75 samples" "$lockstep" predict --load run --first 75

expect 2 "model cnn: run holds a different model \(--model mlp\)" "$lockstep" eval --load run --model cnn
expect 2 "hidden 32: run holds a different model \(--hidden 24\)" "$lockstep" predict --load run --hidden 32
pattern="run/step-00000020 was trained on samples of features f32 \(20\) with 5 classes, but "
pattern+="the data set synthetic has features f32 \(30\) with 5 classes"
expect 2 "$pattern" "$lockstep" eval --load run --data synthetic:30,classes=5
expect 2 "with 5 classes, .* with 6 classes" "$lockstep" eval --load run --data synthetic:20,classes=6
expect 0 "" "$lockstep" eval --load run --data synthetic:20,classes=5,count=100,seed=3 --threads 1
expect 0 "" "$lockstep" eval --load run --data synthetic:20,classes=4,count=100 --threads 1

expect 0 "" "$lockstep" info run
for line in "^checkpoint +run/step-00000020$" "^step +20$" "^seed +4$" \
    "^written +20[0-9-]+T[0-9:]+Z by $(id -un) on $(uname -n), Lockstep [0-9]" "^precision +f64$" \
    "^options +--model mlp$" "^ +--momentum 0.9$" "^samples +features f32 \(20\)$" "^ +label i32 \(\), 5 classes$" \
        "^normalisation +mean 0.1, std 2$" \
    "^tensors +fc1.bias f64 \(24\)$" "^ +fc2.weight f64 \(5, 24\)$" "^parameters +629, of 629 values in 4 tensors$" \
        "^digests +match the files$" \
    "^SHA-256 +$(sha256sum < run/model.safetensors | cut -c1-64) model.safetensors$"; do
    grep -Eq "$line" out.txt || complain "info: no line '$line' in: $(cat out.txt)"
done
"$lockstep" info run --json > info.json || complain "info --json failed"
[ "$(wc -l < info.json)" = 1 ] || complain "info --json: $(cat info.json)"
if command -v python3 > /dev/null; then
    python3 - << 'END' || complain "info --json: $(cat info.json)"
import json
d = json.load(open("info.json"))
assert d["step"] == 20 and d["seed"] == "4" and d["parameters"] == 629, d
assert d["intact"] is True and d["recorded"] is True, d
assert d["options"]["hidden"] == "24" and d["options"]["lr"] == "0.02" and "batch" in d["options"], d
assert d["fields"] == [{"name": "features", "dtype": "f32", "shape": [20]},
                       {"name": "label", "dtype": "i32", "shape": [], "classes": 5}], d
assert d["normalisation"] == {"mean": [0.1], "std": [2]} and len(d["tensors"]) == 4, d
assert {"name": "fc1.weight", "dtype": "f64", "shape": [24, 20]} in d["tensors"], d
END
fi
expect 2 "nowhere holds no checkpoint" "$lockstep" info nowhere
expect 2 "unexpected argument" "$lockstep" info run run
cp -r run damaged && printf X | dd of=damaged/step-00000020/model.safetensors bs=1 seek=1001 conv=notrunc 2> /dev/null
expect 2 "damaged/step-00000020/model.safetensors is damaged" "$lockstep" info damaged
grep -q "do not match" out.txt || complain "info of a damaged checkpoint: $(cat out.txt)"

# Of two checkpoints the older one is used where the newer lacks its weights, a part of them, or its state; info says
# so.
expect 0 "" "$lockstep" train $mlp --threads 1 --steps 20 --save-every 10 --save both --seed 4
for damage in 'rm both/step-00000020/model.safetensors' 'truncate -s 500 both/step-00000020/model.safetensors' \
    'truncate -s 9 both/step-00000020/state.json'; do
    cp -r both kept
    $damage
    expect 0 "skipping a checkpoint: both/step-00000020/" "$lockstep" eval --load both --threads 1
    expect 2 "step 20 of both is damaged: the newest intact step is shown" "$lockstep" info both
    grep -q '^step  *10$' out.txt || complain "info after $damage: $(cat out.txt)"
    expect 0 "resumed both at step 10 of 20" "$lockstep" train --save both --resume auto --threads 1
    rm -r both && mv kept both
done
mkdir empty && ln -s step-00000020/model.safetensors empty/model.safetensors
for command in eval predict info; do
    load=--load && [ $command = info ] && load=
    expect 2 "^lockstep $command: empty holds no checkpoint" "$lockstep" $command $load empty
done

# The weights alone need the options.
cp -L run/model.safetensors alone.safetensors
expect 0 "" "$lockstep" eval --load alone.safetensors $mlp --threads 1 --json
[ "$explicit" = "$(cat out.txt)" ] || complain "eval of the weights alone: $(cat out.txt)"
for command in eval predict; do
    expect 2 "^lockstep $command: --load alone.safetensors contains only weights: --model and --data are missing$" \
        "$lockstep" $command --load alone.safetensors
    expect 2 "^lockstep $command: --load alone.safetensors contains only weights: --data is missing$" "$lockstep" \
        $command --load alone.safetensors --model mlp
    expect 2 "^lockstep $command: --load alone.safetensors contains only weights: --model is missing$" "$lockstep" \
        $command --load alone.safetensors --data synthetic
    expect 2 "--model and --data are missing; use --load run, the checkpoint, which records both$" "$lockstep" \
        $command --load \
        run/model.safetensors
done
expect 2 "^lockstep generate: --load run: this is a checkpoint of --model mlp, which does not generate text" \
    "$lockstep" generate --load run --prompt x
expect 2 "^lockstep generate: --load run/step-00000020: this is a checkpoint of --model mlp" "$lockstep" generate \
    --load run/step-00000020 --prompt x

# The directory of one step is resumed, as it is evaluated: into another directory, or where it is the newest. Later
# steps are not replaced.
expect 0 "resumed both/step-00000010 at step 10 of 20" "$lockstep" train --resume both/step-00000010 --save branch \
    --threads 1
cmp both/model.safetensors branch/model.safetensors || complain "a run from step 10 ends with other weights"
expect 2 "both holds later checkpoints than step 10, up to step 20, which this run would replace" "$lockstep" train \
    --resume both/step-00000010 --save both --threads 1
expect 2 "both holds later checkpoints than step 10" "$lockstep" train --resume both/step-00000010/ --save "$PWD/both" \
    --threads 1 -n 2
expect 0 "resumed both/step-00000020 at step 20 of 22" "$lockstep" train --resume both/step-00000020 --save both \
    --keep 9 --steps 22 --threads 1
mv both/step-00000020 both/step-00000022 .
expect 0 "resumed both/step-00000010 at step 10 of 20" "$lockstep" train --resume both/step-00000010 --save both \
    --steps 20 --threads 1
cmp both/model.safetensors branch/model.safetensors ||
    complain "a run from step 10 into its own directory ends with other weights"
expect 0 "resumed step-00000022 at step 22 of 23" "$lockstep" train --resume step-00000022 --steps 23 --threads 1
expect 2 "branch already holds a checkpoint" "$lockstep" train --resume both/step-00000010 --save branch --threads 1
for file in run/model.safetensors run/step-00000020/state.json; do
    expect 2 "^lockstep train: $file holds no checkpoint: it is a file, not the directory of a run or of a step$" \
        "$lockstep" train --resume $file --threads 1
done
echo x >> step-00000022/optimizer.safetensors
expect 2 "^lockstep train: step-00000022/optimizer.safetensors is damaged" "$lockstep" train --resume step-00000022 \
    --steps 23 --threads 1
expect 2 "both/step-00000015 holds no checkpoint: it does not exist" "$lockstep" train --resume both/step-00000015 \
    --threads 1

# Resuming on data that have changed: a warning, whatever they are; none for a copy of them elsewhere.
changed='the training set is not the one that changed was trained on: '
changed+='it has the same number of samples, but different contents'
# same_data OPTIONS…, other_data TEXT OPTIONS…: a run goes on without a warning, or with it
same_data() {
    expect 0 "resumed changed at step" "$lockstep" train --save changed --resume auto --threads 1 --steps $((++last)) \
        "$@"
    ! grep -q 'the training set is not' err.txt || complain "$*: $(cat err.txt)"
}
other_data() {
    local text=$1
    shift
    expect 0 "$text" "$lockstep" train --save changed --resume auto --threads 1 --steps $((++last)) "$@"
}
begin_data() {
    rm -rf changed
    last=1
    expect 0 "" "$lockstep" train --save changed --threads 1 --steps 1 --batch 8 --eval-every -1 "$@"
}
awk 'BEGIN { print "a,b,label"; for (i = 0; i < 100; i++) printf "%d.5,%d.25,%d\n", i * 7 % 13, i * 5 % 11, i % 2 }' > \
    table.csv
begin_data --model mlp --data csv:table.csv
same_data
same_data -n 2
cp table.csv copy.csv
same_data --data csv:copy.csv
sed -i '60s/^[0-9]*/99/' copy.csv
other_data "$changed" -n 2
same_data # since the last save
echo 1.5,2.5,1 >> copy.csv
other_data 'the training set is not the one that changed was trained on: it has 101 samples, but that one had 100'
awk 'BEGIN { for (i = 0; i < 20000; i++) printf "%c", 97 + i * i % 23 }' > words.txt
begin_data --model gpt --layers 1 --width 8 --heads 1 --context 8 --data text:words.txt --tokenizer byte
same_data
sed -i 's/^\(.\{12345\}\)./\1Z/' words.txt
other_data "$changed"

# A checkpoint of a version without records: as before, with a note where the record would be needed.
cp -rL run old && state=old/step-00000020/state.json
zeros=$(printf '%064d' 0)
sed -i 's/,"parameters":[0-9]*,"written":{[^}]*},"record":.*,"sha256"/,"sha256"/
    s/\("state.json":"\)[0-9a-f]*/\1'"$zeros/" $state
sed -i "s/$zeros/$(sha256sum < $state | cut -c1-64)/" $state
expect 0 "" "$lockstep" eval --load old $mlp --threads 1 --json
[ "$explicit" = "$(cat out.txt)" ] || complain "eval of an old checkpoint: $(cat out.txt)"
expect 2 "old has no record of its model and data: using --model cnn" "$lockstep" eval --load old --data \
    synthetic:3x32x32,count=64
expect 0 "" "$lockstep" info old
grep -q "^record  *none" out.txt || complain "info of an old checkpoint: $(cat out.txt)"

# A regression prints numbers: their mean squared difference from the targets is the loss of eval.
awk 'BEGIN { srand(3); print "a,b,y"
    for (i = 0; i < 400; i++) { a = rand(); b = rand(); printf "%.6f,%.6f,%.6f\n", a, b, 2 * a - 3 * b + 1 } }' \
    > points.csv
expect 0 "" "$lockstep" train --model mlp --hidden 8 --data csv:points.csv --loss mse --holdout 0.25 --epochs 20 --lr \
    0.01 --threads 1 --save line
expect 0 "from the record of line: --model mlp --hidden 8 --loss mse --data csv:points.csv --holdout 0.25" "$lockstep" \
    eval --load line --threads 1 --json
loss=$(field loss < out.txt)
expect 0 "" "$lockstep" predict --load line --threads 1 --count 1000 --csv
[ "$(head -1 out.txt)" = "index,target_1,value_1" ] || complain "the names of a regression: $(head -1 out.txt)"
awk -F, -v loss="$loss" 'NR > 1 { n++; sum += ($2 - $3) ^ 2 }
    END { d = sum / n - loss; exit !(n > 60 && n < 140 && d < 1e-6 && d > -1e-6) }' out.txt ||
    complain "loss $loss, predictions: $(head -3 out.txt)"
expect 0 "" "$lockstep" predict --load line --threads 1 --count 2
grep -Eq '^     0  -?[0-9.]+  it is -?[0-9.]+$' out.txt || complain "a regression as text: $(cat out.txt)"
expect 0 "" "$lockstep" predict --load line --threads 1 --count 2 --json
grep -Eq '^\{"index": 0, "values": \[-?[0-9.]+\], "target": \[-?[0-9.]+\]\}$' out.txt ||
    complain "a regression as JSON: $(cat out.txt)"
head -20 points.csv > few.csv # without a test set: all samples
expect 0 "" "$lockstep" predict --load line --threads 1 --data csv:few.csv --count 1000 --csv
[ "$(wc -l < out.txt)" = 20 ] || complain "all samples of a file: $(cat out.txt)"
# Targets of another width, of which some would lie behind the batch.
npy() { # npy FILE ROWS COLUMNS: zeros in f32
    local header
    header=$(printf "%-117s" "{'descr': '<f4', 'fortran_order': False, 'shape': ($2, $3), }")
    { printf '\223NUMPY\001\000\166\000%s\n' "$header"; head -c $((4 * $2 * $3)) /dev/zero; } > "$1"
}
npy samples.npy 64 4 && npy wide.npy 64 500 && npy narrow.npy 64 1
expect 0 "" "$lockstep" train --model mlp --hidden 4 --loss mse --data npy:samples.npy,wide.npy --steps 1 --threads 1 \
    --save wide
for command in "eval --load wide" "predict --load wide" "train --resume wide --steps 2"; do
    expect 2 'trained on samples of .* and 500 numbers to predict, but the data set .* and 1 number to predict' \
        "$lockstep" $command --threads 1 --data npy:samples.npy,narrow.npy --holdout 0.25
done

printf 'x,kind\n1,cat\n2,dog\n3,fox\n4,cat\n5,dog\n6,fox\n' > kinds.csv
expect 0 "" "$lockstep" train --model mlp --data csv:kinds.csv --batch 2 --steps 1 --threads 1 --save kinds
# A name that is not UTF-8: the checkpoint still fits its own data, and no other.
printf 'x,kind\n1,\351x\n2,dog\n3,\352\n4,\351x\n5,dog\n6,\352\n' > latin.csv
expect 0 "" "$lockstep" train --model mlp --data csv:latin.csv --batch 2 --steps 3 --threads 1 --save latin
expect 0 "" "$lockstep" predict --load latin --threads 1
expect 0 "" "$lockstep" train --save latin --resume auto --threads 1 --steps 5
latin=$(printf 'caf\351') # JSON is UTF-8, also with the names of files that are not
cp latin.csv "$latin.csv"
expect 0 "" "$lockstep" train --model mlp --data "csv:$latin.csv" --batch 2 --steps 3 --threads 1 --save "$latin" \
    --json --log "$latin.jsonl"
cat out.txt "$latin.jsonl" > all.json
expect 0 "" "$lockstep" info "$latin" --json
cat out.txt >> all.json
iconv -f UTF-8 -t UTF-8 all.json > /dev/null 2>&1 && grep -q 'csv:caf.*csv' all.json ||
    complain "JSON that is not UTF-8: $(cat -v all.json)"
sed -i 's/x$/y/' latin.csv
expect 2 'is not a class of the training data' "$lockstep" predict --load latin --threads 1
sed -i 's/cat/emu/' kinds.csv
expect 2 "'emu' is not a class of the training data" "$lockstep" predict --load kinds --threads 1
pattern="kinds.csv: line 2, column 2 \('kind'\): 'emu' is not a class of the training data: "
pattern+="expected one of 'cat', 'dog', 'fox'"
for ranks in "" "-n 2" "-n 2 --unknown-label refuse"; do
    # shellcheck disable=SC2086
    expect 2 "$pattern" "$lockstep" train $ranks --save kinds --resume auto --threads 1 --steps 5
done
expect 0 "kinds.csv: 2 of 6 samples have labels that the training data does not have \('emu', …\), and are left out" \
    "$lockstep" train -n 2 --save kinds --resume auto --threads 1 --steps 5 --unknown-label skip

# ---- resuming ----
options="--model mlp --hidden 24 --data synthetic:20,classes=5,count=300 --batch 48 --seed 9 --optimizer adamw"
options="$options --lr 0.003 --weight-decay 0.05 --schedule cosine --lr-min 0.0001 --clip 1 --reproducible"
options="$options --leaves 6 --steps 24 --eval-every -1"
"$lockstep" train $options --threads 1 --json > whole.json 2> err.txt || complain "$(cat err.txt)"
whole=$(field hash < whole.json)
start() {
    rm -rf half
    "$lockstep" train ${options/--steps 24/--steps 11} --threads 1 --save half "$@" 2> err.txt ||
        complain "$(cat err.txt)"
}
start --save-every 4 --log first.jsonl
expect 0 "from the record of half: --model mlp" "$lockstep" train --save half --resume auto --steps 24 --threads 1 \
    --json
grep -q "resumed half at step 11 of 24" err.txt || complain "did not resume: $(cat err.txt)"
case $(cat err.txt) in *first.jsonl*) complain "the log of the record is used: $(cat err.txt)" ;; esac
ls half | grep -q step-00000020 || complain "--save-every of the record is not used: $(ls half)"
# cosine's length changed with --steps, so the bits are those of a run with the same two lengths, given in full
again=$(field hash < out.txt)
start
"$lockstep" train $options --threads 1 --save half --resume auto --json > full.json 2> err.txt ||
    complain "$(cat err.txt)"
[ "$again" = "$(field hash < full.json)" ] || complain "from the record: $again, with all options: $(cat full.json)"

options=${options/--schedule cosine --lr-min 0.0001 /}
"$lockstep" train $options --threads 1 --json > whole.json 2> err.txt || complain "$(cat err.txt)"
whole=$(field hash < whole.json)
for how in "" "-n 2" "launcher"; do
    start -n 3
    if [ "$how" = launcher ]; then
        expect 0 "" "$lockstep" run -n 2 -- "$lockstep" train --save half --resume auto --steps 24 --threads 1 --json
    else
        expect 0 "from the record of half: --model mlp" "$lockstep" train $how --save half --resume auto --steps 24 \
            --threads 1 --json
    fi
    [ "$whole" = "$(field hash < out.txt)" ] ||
        complain "resumed ($how): $(cat out.txt), uninterrupted: $whole; $(cat err.txt)"
    case $how in "") ranks=3 ;; *) ranks=2 ;; esac
    [ "$(field ranks < out.txt)" = $ranks ] || complain "resumed ($how) with other ranks than $ranks: $(cat out.txt)"
    [ "$(grep -c 'from the record' err.txt)" -le 1 ] || complain "the note is printed more than once: $(cat err.txt)"
done
expect 0 "" "$lockstep" train --save half --resume auto -n 1 --threads 1 --json
[ "$(field step < out.txt)" = 24 ] && [ "$(field hash < out.txt)" = "$whole" ] ||
    complain "resumed at its end: $(cat out.txt)"
expect 0 "" "$lockstep" train --save further --resume half -n 1 --epochs 5 --threads 1 --json
[ "$(field step < out.txt)" = 35 ] || complain "--epochs does not replace the record's --steps: $(cat out.txt)"
expect 2 "model cnn: half holds a different model \(--model mlp\)" "$lockstep" train --save half --resume auto \
    --model cnn
expect 2 "model cnn: half holds a different model \(--model mlp\)" "$lockstep" train --save half --resume auto \
    --model cnn -n 2
expect 2 "trained on samples of features f32 \(20\) with 5 classes.*features f32 \(21\) with 5 classes" "$lockstep" \
    train --save half --resume auto --data synthetic:21,classes=5 -n 1
expect 2 "a different optimizer, or with different frozen parameters" "$lockstep" train --save half --resume auto \
    --freeze 'fc1.*' -n 1
expect 2 "optimizer" "$lockstep" train --save half --resume auto --optimizer sgd -n 1

# ---- partial weights, frozen and grouped parameters ----
cnn="--data synthetic:1x8x8,classes=4,count=64 --batch 16 --threads 1 --steps 3"
expect 0 "" "$lockstep" train --model cnn $cnn --save four
expect 0 "" "$lockstep" train --model cnn ${cnn/classes=4/classes=3} --init-partial four --freeze 'conv*' --group \
    'fc1.*:lr=0.5,decay=0' --group 'fc2.weight:frozen' --save three --json
grep -q "6 tensors loaded: conv1.weight, conv1.bias, conv2.weight, conv2.bias, fc1.weight, fc1.bias$" err.txt ||
    complain "loaded: $(cat err.txt)"
pattern="2 tensors with a different shape or type, not loaded: fc2.weight is (4×512) in the file and "
pattern+="(3×512) in the model, "
pattern+="fc2.bias is (4) in the file and (3) in the model$"
grep -q "$pattern" err.txt || complain "not loaded: $(cat err.txt)"
pattern='"init_partial": {"loaded": \["conv1.weight", .*"fc1.bias"\], "missing": \[\], '
pattern+='"mismatched": \["fc2.weight", "fc2.bias"\], "unexpected": \[\]}'
grep -q "$pattern" out.txt || complain "init_partial: $(cat out.txt)"
moments=$(head -c 4096 three/optimizer.safetensors |
    grep -aoE '"[a-z0-9]+\.(weight|bias)\.exp_avg"' | sort | tr '\n' ' ')
[ "$moments" = '"fc1.bias.exp_avg" "fc1.weight.exp_avg" "fc2.bias.exp_avg" ' ] || complain "trained: $moments"
pattern="group conv\*:|from the record of three:.*--freeze 'conv\*' --group 'fc1.\*:lr=0.5,decay=0;fc2.weight:frozen'"
expect 0 "$pattern" "$lockstep" train --save three --resume auto --steps 5 --threads 1
grep -q "init-partial" err.txt && complain "--init-partial of the record is used: $(cat err.txt)"
expect 2 'no parameter matches "fc3\.\*"; the nearest name is "fc[12]\.' "$lockstep" train --model cnn $cnn --freeze \
    'fc3.*'
expect 2 'no parameter matches "conv1.wieght"; the nearest name is "conv1.weight"' "$lockstep" train --model cnn $cnn \
    -n 2 --group 'conv1.wieght:lr=2'
expect 2 'no parameter matches "fc1\.running\*"' "$lockstep" plan --model cnn $cnn --freeze 'fc1.running*'
expect 2 "expected PATTERN:SETTINGS" "$lockstep" train --model cnn $cnn --group 'fc1.*'
expect 2 "'rate=3': expected lr=FACTOR, decay=X or frozen" "$lockstep" train --model cnn $cnn --group \
    'fc1.*:rate=3'
expect 2 "with lr=0 nothing is trained: use frozen" "$lockstep" train --model cnn $cnn --group 'fc1.*:lr=0'
expect 2 "lr multiplies the learning rate" "$lockstep" train --model cnn $cnn --group 'fc1.*:lr=fast'
expect 2 "a pattern is empty" "$lockstep" train --model cnn $cnn --freeze 'fc1.*;'
expect 2 "share no tensor" "$lockstep" train --model cnn $cnn --init-partial run
expect 2 "init-partial are mutually exclusive" "$lockstep" train --model cnn $cnn --init-partial four --init four
expect 2 "init-partial.*no.such" "$lockstep" train --model cnn $cnn --init-partial no-such.safetensors

# ---- the final rate of the cosine ----
"$lockstep" train --model mlp --steps 40 --batch 16 --threads 1 --eval-every -1 --lr 0.4 --warmup 8 --schedule cosine \
    --lr-min 0.05 --log rates.jsonl 2> err.txt || complain "$(cat err.txt)"
field lr < rates.jsonl | awk \
    '{ s = NR - 1; want = s < 8 ? 0.4 * (s + 1) / 8 : 0.05 + 0.35 * (1 + cos(3.141592653589793 * (s - 8) / 32)) / 2
    d = $1 - want; if (d > 1e-12 || d < -1e-12) { print "step " s ": " $1 ", expected " want; exit 1 } }
    END { exit NR != 40 }' || complain "rates of the cosine"
expect 2 "lr-min requires --schedule cosine" "$lockstep" train --model mlp --lr-min 0.1
expect 2 "lr-min 0.1 is above the learning rate 0.001" "$lockstep" train --model mlp --schedule cosine --lr-min 0.1
expect 0 "" "$lockstep" train --model mlp --schedule cosine --lr 0.05 --lr-min 0.1 --lr-scale linear --batch 256 \
    --steps 2 --threads 1

[ "$wrong" = 0 ] && echo "ok"
exit "$((wrong > 0))"
