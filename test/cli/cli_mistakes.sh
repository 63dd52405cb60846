#!/usr/bin/env bash
# cli_mistakes.sh - user errors: a clear message and the right exit status, and nothing is overwritten.
# ctest: timeout 240, label quick
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

small="--model cnn --data synthetic:3x32x32,count=64 --batch 32 --threads 1 --steps 1"
lockstep=$LOCKSTEP

expect 2 "did you mean '?--epochs" "$lockstep" train --epoch 3
expect 2 "did you mean" "$lockstep" train --optimiser adam
expect 2 "did you mean" "$lockstep" trian
expect 2 "lr" "$lockstep" train --lr -1
expect 2 "batch" "$lockstep" train --batch 0
expect 2 "batch" "$lockstep" train --batch many
expect 2 "model" "$lockstep" train --model resnet19
expect 2 "device gpu: unknown device; expected auto, cpu, cuda or cuda:N" "$lockstep" train $small --device gpu
expect 2 "device gpu: unknown device" "$lockstep" train $small -n 2 --device gpu
expect 2 "LOCKSTEP_DEVICE is 'gpu' in the environment: unknown device" env LOCKSTEP_DEVICE=gpu "$lockstep" train $small
expect 2 "device" "$lockstep" plan --device gpu
expect 2 "betas" "$lockstep" train $small --betas 0.9
for options in "" "-n 2"; do
    expect 2 "download auto: only cifar10, fashion-mnist and mnist can be downloaded, not --data synthetic" \
        "$lockstep" train $small $options --download auto
    expect 2 "--sync-batchnorm.*, but the model has no batch norm: remove this option" "$lockstep" train $small \
        $options --sync-batchnorm
done
expect 2 "--sync-batchnorm.*, but the model has no batch norm: remove this option" "$lockstep" plan --model gpt \
    --sync-batchnorm
expect 2 "sum-part-minimum requires --reproducible layout" "$lockstep" train $small --reproducible --sum-part-minimum 4
expect 2 "'everything' is not one of true|layout|false" "$lockstep" train $small --reproducible everything
expect 2 "batch_norm computes statistics for each leaf.*: synchronise it \(sync_batch_norm, --sync-batchnorm\)" \
    "$lockstep" plan --model resnet20 --data synthetic:3x8x8 --batch 16 --reproducible layout
expect 2 "linear adds 64 elements in 1 part, which cannot be divided equally among 4 ranks along tensor: with \
--reproducible layout use a smaller extent, or --sum-part-minimum 16 or less" "$lockstep" plan --model mlp --hidden 64 \
    --data synthetic:24,classes=8 --batch 16 --mesh tensor=4 --reproducible layout
expect 2 "a micro-batch must consist of whole leaves, and with --leaves 8 a rank has at most 8" \
    "$lockstep" train $small --reproducible --accumulate 9
expect 2 "momentum" "$lockstep" train $small --momentum 0.9
expect 2 "did you mean|cifar10" "$lockstep" train --data cifar
expect 2 "no-such|lockstep data get" "$lockstep" train --data cifar10:no-such-place
# A model that does not fit the data: the message names the options, and no source file.
mkdir none
needs() { # needs MODEL DATA MESSAGE
    for command in train "train -n 2" plan "eval --load none" "predict --load none" "bench train"; do
        expect 2 "^lockstep [a-z]*: --model $1 --data $2(,classes=10)?: $1 needs $3" "$lockstep" $command --model "$1" \
            --data "$2"
        [ "$(wc -l < err.txt)" = 1 ] && ! grep -q "\.c:" err.txt ||
            complain "$command: more than one line: $(cat err.txt)"
    done
}
needs cnn synthetic:64 'images \(channels, height, width\); the data has 64 features'
needs resnet18 synthetic:64 'images \(channels, height, width\); the data has 64 features'
needs resnet20 synthetic:5x6 "images \\(channels, height, width\\); the data's samples have 2 axes"
needs cnn synthetic:3x3x9 'images of at least 4 by 4 pixels; those of the data have 3 by 9'
expect 2 "resume auto requires" "$lockstep" train $small --resume auto
expect 2 "missing" "$lockstep" eval --model cnn
expect 2 "none.safetensors" "$lockstep" eval --load none.safetensors --model cnn --data synthetic
for options in "" "-n 2" "$small" "$small -n 2"; do
    expect 2 "no-such-run holds no checkpoint: it does not exist" "$lockstep" train $options --resume no-such-run
    expect 2 "^lockstep train: none holds no checkpoint$" "$lockstep" train $options --resume none
done
for command in eval predict; do expect 2 "^lockstep $command: no-such-run holds no checkpoint: it does not exist" \
    "$lockstep" $command --load no-such-run; done
printf 'model = cnn\nepoch = 3\n' > bad.conf
expect 2 "bad.conf:2.*epochs" "$lockstep" train --config bad.conf
expect 2 "none.conf" "$lockstep" train --config none.conf

# Errors, not ignored: non-numeric variables, options that the model or the data do not use, ranks without a sample.
for command in "train --model mlp --steps 1" "train -n 2 --model mlp --steps 1" "plan --model mlp" info \
    "run -n 2 true" "bench comm"; do
    for value in abc 0 -1 2x 257 9999999999999999999999; do
        expect 2 "LOCKSTEP_THREADS is '$value' in the environment: expected a number from 1 to 256" env \
            LOCKSTEP_THREADS=$value "$lockstep" $command
        [ "$(wc -l < err.txt)" = 1 ] || complain "$command: $(cat err.txt)"
    done
done
for set in PORT=abc PORT=4000-x PORT=70000 NO_DEADLINES=yes TERMINAL=wide MEMORY_NODES=0; do
    expect 2 "LOCKSTEP_${set%=*} is '${set#*=}' in the environment" env "LOCKSTEP_$set" "$lockstep" train --model mlp \
        --steps 1
done
expect 2 "does not support the instruction set \"sse9\", set by LOCKSTEP_ISA" env LOCKSTEP_ISA=sse9 "$lockstep" \
    train --model mlp --steps 1
expect 0 "" env LOCKSTEP_MEMORY_NODES=2 LOCKSTEP_THREADS= LOCKSTEP_PORT=4000-4100 LOCKSTEP_NO_DEADLINES=0 \
    LOCKSTEP_TERMINAL=80 "$lockstep" train --model mlp --steps 1
mkdir tiny # MNIST of two samples
for set in train t10k; do
    { printf '\0\0\010\003\0\0\0\002\0\0\0\010\0\0\0\010'; head -c 128 /dev/zero; } > tiny/$set-images-idx3-ubyte
    printf '\0\0\010\001\0\0\0\002\001\002' > tiny/$set-labels-idx1-ubyte
done
expect 2 "classes 7: mnist:tiny has 10 classes" "$lockstep" train --data mnist:tiny --classes 7 --steps 1
expect 2 "classes 7: mnist:tiny has 10 classes" "$lockstep" train -n 2 --data mnist:tiny --classes 7 --steps 1
expect 0 "" "$lockstep" train --data mnist:tiny --classes 10 --steps 1
expect 2 "classes 7: synthetic:3x8x8,classes=5 has 5 classes" "$lockstep" train --data synthetic:3x8x8,classes=5 \
    --classes 7 --steps 1
expect 2 "features 5: a sample of synthetic:64 has 64 features" "$lockstep" train --model mlp --data synthetic:64 \
    --features 5
expect 2 "features 5: a sample of synthetic:3x32x32,classes=10 has 3072 values \(an image\)" "$lockstep" train --data \
    synthetic --features 5
expect 2 "hidden applies only to --model mlp" "$lockstep" train --model cnn --hidden 5
printf 'a,b,target\n1,2,1\n3,4,0\n5,6,1\n7,8,0\n' > numbers.csv
for command in train "train -n 2" plan; do
    expect 2 "^lockstep [a-z]*: --gamma requires --schedule step" "$lockstep" $command --model mlp --gamma 0.5
    expect 2 "step-size requires --schedule step" "$lockstep" $command --model mlp --schedule cosine --step-size 5
    expect 2 "keep requires --save DIR" "$lockstep" $command --model mlp --keep 3
    expect 2 "save-every requires --save DIR" "$lockstep" $command --model mlp --save-every 3
    for loss in mse l1 bce; do
        expect 2 "label-smoothing applies only to --loss cross_entropy; this model is trained with $loss" "$lockstep" \
            $command --model mlp --data csv:numbers.csv --loss $loss --label-smoothing 0.1
    done
done
expect 2 "base-batch requires --lr-scale" "$lockstep" train --model mlp --base-batch 32
expect 0 "" "$lockstep" train --model mlp --steps 2 --threads 1 --schedule step --gamma 0.5 --step-size 1 --lr-scale \
    sqrt --base-batch 32 --save kept --save-every 1 --keep 1
expect 0 "" "$lockstep" train --resume kept --steps 3 --threads 1 # without --save
expect 2 "stem applies only to --model resnet18" "$lockstep" plan --model resnet20 --stem cifar
expect 2 "recompute applies only to --model resnet18, resnet20" "$lockstep" train --model cnn --recompute
"$lockstep" train --model mlp --data synthetic:4,count=64 --classes 3 --hidden 2 --steps 1 --json 2> /dev/null |
    grep -q '"parameters": *19' || complain "--classes with synthetic:4"
expect 2 "batch 3 for 4 ranks.*--batch 4 or more" "$lockstep" train -n 4 --model mlp --batch 3 --steps 1
expect 2 "batch 3 for 4 ranks" "$lockstep" plan -n 4 --model mlp --batch 3
expect 2 "batch 3 for 4 ranks" "$lockstep" bench train -n 4 --model mlp --batch 3 --steps 1
expect 2 "batch 1 for 2 ranks" "$lockstep" run -n 2 -- "$lockstep" train --model mlp --batch 1 --steps 1
expect 0 "" "$lockstep" train -n 4 --model mlp --batch 4 --steps 1

# Data: truncated, of another format, labels out of range.
mkdir cut foreign label
for i in 1 2 3 4 5; do head -c 6146 /dev/zero > "label/data_batch_$i.bin"; head -c 3072 /dev/zero > \
    "cut/data_batch_$i.bin"; echo text > "foreign/data_batch_$i.bin"; done
for d in cut foreign label; do head -c 3073 /dev/zero > $d/test_batch.bin; done
{ head -c 3073 /dev/zero; printf '\013'; head -c 3072 /dev/zero; } > label/data_batch_3.bin
expect 2 "data_batch_1.bin" "$lockstep" train --data cifar10:cut --steps 1
expect 2 "data_batch_1.bin" "$lockstep" train --data cifar10:foreign --steps 1
expect 2 "data_batch_3.bin.*(label|11)" "$lockstep" train --data cifar10:label --steps 1
mkdir idx
for f in train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte; do echo \
    "not an IDX file" > idx/$f; done
expect 2 "idx/train" "$lockstep" train --data mnist:idx --steps 1

# Checkpoints: of another model, damaged, already existing.
expect 0 "" "$lockstep" train $small --save run
before=$(cat run/model.safetensors run/optimizer.safetensors run/state.json | sha256sum)
expect 2 "already holds a checkpoint" "$lockstep" train $small --save run
expect 0 "resumed ./run/ at step 1" "$lockstep" train $small --save run --resume ./run/ # the same directory
expect 2 "a different model" "$lockstep" train $small --model resnet20 --save run --resume auto
expect 2 "a different model|has no" "$lockstep" eval --load run --model mlp --features 3072 --data synthetic:3072
expect 2 "optimizer" "$lockstep" train $small --save run --resume auto --optimizer sgd
for ranks in "" "-n 2"; do
    expect 2 \
        '^lockstep train: --init: "fc2.weight" is \(10×512\) in run/.*model.safetensors and \(7×512\) in the model' \
        "$lockstep" train $ranks $small --classes 7 --init run
    [ "$(wc -l < err.txt)" = 1 ] || complain "more than one line: $(cat err.txt)"
done
expect 2 "^lockstep predict: --model resnet20: run holds a different model \(--model cnn\)" "$lockstep" predict \
    --load run --model resnet20 --data synthetic:3x32x32,count=64
expect 2 "^lockstep predict: --load: .* belongs to a different model" "$lockstep" predict --load run/model.safetensors \
    --model resnet20 --data synthetic:3x32x32,count=64
expect 2 "mean and --std for 2 channels: synthetic:3x32x32,count=64 has 3" "$lockstep" train $small --mean 1,2
echo "junk" > junk.safetensors
expect 2 "junk.safetensors" "$lockstep" train $small --init junk.safetensors
# Weights in PyTorch's and Python's formats: the message names the format and has the two lines that convert them.
{ printf 'PK\003\004'; head -c 22 /dev/zero; printf '\020\0\0\0archive/data.pkl'; head -c 100 /dev/zero; } > zipped.pt
{ printf '\200\002\212\012\154\374\234\106\371\040\152\250\120\031.'; head -c 100 /dev/zero; } > legacy.pth
{ printf 'PK\003\004'; head -c 22 /dev/zero; printf '\005\0\0\0a.txt'; head -c 100 /dev/zero; } > other.zip
{ printf '\200\004\225'; head -c 100 /dev/zero; } > weights.pkl
for file in zipped.pt legacy.pth other.zip weights.pkl; do
    for command in "eval --load" "predict --load" "train --steps 1 --init" "train -n 2 --steps 1 --init"; do
        expect 2 "$file is a (PyTorch file|zip|Python pickle).*, not safetensors" "$lockstep" $command $file --model \
            cnn --data synthetic:3x32x32,count=64
        [ "$(grep -c '^  import .*safetensors.torch$' err.txt)" = 1 ] &&
            [ "$(grep -c "^  safetensors.torch.save_file(.*load(.*\"$file\".*\"${file%.*}.safetensors\")$" \
                err.txt)" = 1 ] ||
            complain "$command $file: no lines of Python, or more than once: $(cat err.txt)"
    done
done
head -c 100000 run/model.safetensors > cut.safetensors
expect 2 "cut.safetensors" "$lockstep" eval --load cut.safetensors $(echo $small | sed 's/--steps 1//')
# Names of files, and names in files, are never printed unescaped.
esc=$(printf '\033')
tensor() { printf '"%s":{"dtype":"F32","shape":[%s],"data_offsets":[%d,%d]}' "$1" "$2" "$3" $(($3 + 4)); }
header="{$(tensor fc1.weight 1,1 0),$(tensor fc1.bias 1 4),$(tensor fc2.weight 1,1 8),$(tensor fc2.bias 1 12),"
header+="$(tensor 'odd\u001b[31m\nlockstep eval: all is well' 1 16)}"
{
    printf "\\$(printf %03o $((${#header} % 256)))\\$(printf %03o $((${#header} / 256)))\0\0\0\0\0\0"
    printf %s "$header"; head -c 20 /dev/zero
} > "odd${esc}[2J.safetensors"
for load in "odd${esc}[2J.safetensors" "none${esc}[2J"; do
    expect 2 'x1b\[2J' "$lockstep" eval --load "$load" --model mlp --data synthetic --hidden 1 --features 1 --classes 1
    [ "$(wc -l < err.txt)" = 1 ] && ! grep -q "$esc" err.txt || complain "unescaped: $(cat -v err.txt)"
    case $load in
    odd*) grep -Fq 'odd\x1b[31m\nlockstep eval' err.txt || complain "no tensor's name: $(cat -v err.txt)" ;;
    esac
done
mkdir others
echo "important" > others/step-00000001
expect 2 "others" "$lockstep" train $small --save others
[ "$(cat others/step-00000001)" = important ] || complain "overwrote a file of another program"

# Output directories are created, with their parents, and tested before the first step; existing files are not changed.
plain() { if [ "$(id -u)" = 0 ]; then setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; else "$@"; fi; }
mkdir forbidden
echo "line" > old.txt
chmod 555 forbidden
chmod 444 old.txt
chmod 755 .
forbidding=true # root may write anywhere
plain "$lockstep" --version > /dev/null 2>&1 ||
    { forbidding=false; echo "skip: this is root, and no other user can run the command: permissions are not tested"; }
for ranks in "" "-n 2"; do
    rm -rf new
    for where in "save /proc/nothing" "trace /proc/nothing/t.json" "trace ." "log /proc/nothing/l.jsonl" "log ." \
        "log-dir /proc/nothing" "tensorboard /proc/nothing" \
        "save junk.safetensors" "log-dir junk.safetensors/below" "tensorboard junk.safetensors" \
            "trace junk.safetensors/t.json"; do
        expect 2 "^lockstep train: --$where: cannot " "$lockstep" train $ranks $small --$where
        [ "$(wc -l < err.txt)" = 1 ] || complain "$ranks --$where: more than one line: $(cat err.txt)"
    done
    for where in "save $PWD/forbidden" "save $PWD/forbidden/new" "trace $PWD/forbidden/t.json" "trace $PWD/old.txt" \
        "log $PWD/old.txt" "log $PWD/forbidden/l.jsonl" "log-dir $PWD/forbidden" "tensorboard $PWD/forbidden/new"; do
        $forbidding || break
        expect 2 "^lockstep train: --$where: cannot .*Permission denied" plain "$lockstep" train $ranks $small --$where
        grep -q 'step 1' err.txt && complain "$ranks --$where: found after a step: $(cat err.txt)"
    done
    [ -z "$(ls -A forbidden)" ] && [ "$(cat old.txt)" = line ] ||
        complain "the check changed something: $(ls -A forbidden) $(cat old.txt)"
    echo "mine" > mine.json
    echo "mine" > mine.jsonl
    expect 2 "tensorboard /proc/x" "$lockstep" train $ranks $small --trace mine.json --log mine.jsonl --tensorboard \
        /proc/x
    [ "$(cat mine.json mine.jsonl | tr -d '\n')" = minemine ] || complain "the check truncated a file"
    expect 0 "" "$lockstep" train $ranks $small --save new/a/b/run --trace new/c/d/t.json --log new/e/f/l.jsonl \
        --tensorboard new/g/h
    [ -s new/a/b/run/model.safetensors ] && [ -s new/c/d/t.json ] && [ -s new/e/f/l.jsonl ] && [ -n "$(ls new/g/h)" ] ||
        complain "missing: $(find new)"
    [ -z "$(find new -name '.lockstep*' ! -name .lockstep.lock)" ] || complain "leftover files: $(find new)"
    expect 0 "" "$lockstep" train $ranks $small --log-dir new/i/j --trace /dev/null
    [ -s new/i/j/rank-0.jsonl ] || complain "no log: $(find new)"
done
chmod 755 forbidden
expect 2 "^lockstep run: old.txt: cannot create the directory: a file with that name exists" "$lockstep" run --log-dir \
    old.txt true
expect 2 "^lockstep run: /dev/null: cannot create the directory: a file with that name exists" "$lockstep" run \
    --log-dir /dev/null/below true
# One message for all ranks.
mistakes=("2 ^lockstep.bench:.backend.mpi: --backend mpi" "2 ^lockstep.bench:.backend.self --backend self"
    "2 ^lockstep.bench:.the.4.ranks.would.need.3\.5.TiB.of.memory,.but.*.available.*--overcommit --sizes 900G")
for mistake in "${mistakes[@]}"; do
    read -r status pattern options <<< "$mistake"
    for _ in 1 2 3; do
        # shellcheck disable=SC2086 # a list of words
        expect "$status" "$pattern" "$lockstep" bench comm -n 4 $options
        [ "$(wc -l < err.txt)" = 1 ] || complain "bench comm $options: $(cat err.txt)"
    done
done

# Failures: a NaN's message names the step and the samples; a full disk keeps the old checkpoint.
expect 1 "loss became.*step [0-9]+.*samples [0-9]" "$lockstep" train --model cnn --data synthetic:3x32x32,count=64 \
    --batch 32 --threads 1 --steps 50 --lr 1e6 --optimizer sgd
limited="ulimit -f 2000; exec $lockstep train --model cnn --data synthetic:3x32x32,count=64 --batch 32 --threads 1"
expect 1 "run" bash -c "$limited --steps 2 --save run --resume auto"
for evaluate in -1 0; do # the last write of the events, and the one after an evaluation
    limited="ulimit -f 1; exec $lockstep train --model mlp --data synthetic:64,count=256 --threads 1 --steps 40"
    limited="$limited --eval-every $evaluate --tensorboard board"
    expect 1 "the TensorBoard file is incomplete: board/events.*: cannot write: File too large" bash -c \
        "set -o pipefail; ($limited) 2>&1 | cat >&2"
done
after=$(cat run/model.safetensors run/optimizer.safetensors run/state.json | sha256sum)
[ "$before" = "$after" ] || complain "the checkpoint changed"
[ -z "$(find run -name '*.tmp.*')" ] || complain "leftover files: $(find run)"
expect 0 "" "$lockstep" train --model cnn --data synthetic:3x32x32,count=64 --batch 32 --threads 1 --steps 2 --save \
    run --resume auto

# If the newest checkpoint is damaged, a warning is printed and the one before it is used.
printf 'X' | dd of=run/step-00000002/model.safetensors bs=1 seek=5000 conv=notrunc 2> /dev/null
expect 0 "skipping a checkpoint.*damaged" "$lockstep" train --model cnn --data synthetic:3x32x32,count=64 --batch 32 \
    --threads 1 --steps 3 --save run --resume auto
sed -i 's/"position":[0-9]*/"position":32/; s/"seed":"0"/"seed":"5"/' run/step-00000003/state.json
expect 0 "skipping a checkpoint: run/step-00000003/state.json is damaged" "$lockstep" train --model cnn --data \
    synthetic:3x32x32,count=64 --batch 32 --threads 1 --steps 3 --save run --resume auto

# A file of the user's own in the directory is not replaced.
mkdir own
echo "my best model" > own/model.safetensors
expect 2 "own/model.safetensors is not a link created by a save" "$lockstep" train $small --save own
[ "$(cat own/model.safetensors)" = "my best model" ] || complain "overwrote the user's model"

# Two runs that save to one directory: the second fails and names the first; readers are not affected.
mlp="--model mlp --data synthetic:64,count=256 --threads 1"
"$lockstep" train $mlp --batch 32 --epochs 1000000 --eval-every -1 --save-every 200 --save shared > /dev/null 2>&1 &
job=$!
wait_until_job 60 test -e shared/model.safetensors || exit 1
expect 2 "shared is being written by another run \(host $(uname -n), pid $job, since 20[0-9-]+ [0-9:]+ UTC\)" \
    "$lockstep" train $mlp --batch 32 --steps 1 --save shared --resume auto
expect 2 "shared is being written by another run" "$lockstep" train $mlp --batch 32 --steps 1 --save shared --resume \
    auto -n 2
"$lockstep" plan $mlp --batch 32 --save shared > /dev/null || complain "plan failed because of the lock"
expect 0 "" "$lockstep" train $mlp --batch 32 --steps 1 --init shared
kill -9 "$job"
wait "$job" 2> /dev/null
job=
expect 0 "" "$lockstep" train $mlp --batch 32 --steps 1 --save shared --resume auto
expect 1 "standard output" bash -c "$lockstep plan --model cnn > /dev/full"
[ "$wrong" = 0 ] && echo "ok"
exit "$((wrong > 0))"
