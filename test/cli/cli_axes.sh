#!/usr/bin/env bash
# cli_axes.sh - the axes shard and tensor as a user types them: train, eval, generate, bench train and plan, tactics as
# a file and as printed, and a run that is resumed with other axes.
# ctest: timeout 240, ranks 4
# shellcheck disable=SC2086 # options are lists of words
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
expect() { check_command -E "$1" "$2" timeout -s KILL 100 "${@:3}" < /dev/null; }
number() { sed -nE "s/.*\"$1\": ([-0-9.e+]+).*/\1/p" "$2"; }
near() { # near A B RELATIVE
    awk -v a="$1" -v b="$2" -v r="$3" \
        'BEGIN { d = a > b ? a - b : b - a; exit !(a != "" && b != "" && d <= r * (b < 0 ? -b : b)) }'
}

llama="--model llama --layers 2 --width 32 --heads 4 --kv-heads 2 --context 16 --vocabulary 64 --data synthetic"
llama+=" --batch 8"
run="$llama --threads 1 --dtype f64 --eval-every -1 --clip 0.5"

# ---- trained with any axes, and resumed with any others: the losses of one rank ----
expect 0 "" "$LOCKSTEP" train $run --steps 6 --json --save one
want=$(number last_batch_loss out.txt)
expect 0 "" "$LOCKSTEP" train $run --steps 3 --mesh shard=2,tensor=2 --save run
expect 0 "from the record of run:.* --mesh shard=2,tensor=2" "$LOCKSTEP" train --resume run --save run --steps 4
expect 0 "" "$LOCKSTEP" train --resume auto --save run -n 4 --mesh tensor=4 --steps 5
expect 0 "" "$LOCKSTEP" train --resume auto --save run --mesh data=2 --steps 6 --json
near "$(number last_batch_loss out.txt)" "$want" 1e-9 ||
    complain "resumed with three meshes: $(cat out.txt), one rank: $want"
grep -q '"mesh":"data=2"' run/state.json || complain "the record: $(cat run/state.json)"
# An option of an axis that the new mesh does not have is not taken from the record.
expect 0 "" "$LOCKSTEP" train $run --steps 1 --mesh tensor=2 --no-sequence-parallel --save plain
expect 0 "" "$LOCKSTEP" train --resume plain --save plain --steps 2 --mesh data=2
expect 0 "" "$LOCKSTEP" train --resume plain --save plain --steps 3 -n 1

# ---- evaluated and continued by ranks that have parts of the model; each sample once ----
"$LOCKSTEP" eval --load one --json > one.json 2> err.txt || complain "eval: $(cat err.txt)"
for mesh in shard=2 tensor=2 data=2,tensor=2; do
    expect 0 "" "$LOCKSTEP" eval --load one --mesh $mesh --json --threads 1
    near "$(number loss out.txt)" "$(number loss one.json)" 1e-12 || complain "eval $mesh: $(cat out.txt one.json)"
    [ "$(number samples out.txt)" = "$(number samples one.json)" ] || complain "eval $mesh: $(cat out.txt)"
done
ids="--load one --prompt-ids 1,2,3,4,5 --prompt-ids 9 --ids --tokens 8 --threads 1 --dtype f64"
"$LOCKSTEP" generate $ids > one.ids 2> err.txt || complain "generate: $(cat err.txt)"
for ranks in "-n 2" "--mesh tensor=4" "--mesh shard=2,tensor=2"; do
    expect 0 "" "$LOCKSTEP" generate $ids $ranks
    cmp -s out.txt one.ids || complain "generate $ranks: $(cat out.txt), one rank: $(cat one.ids)"
done
expect 0 "" "$LOCKSTEP" bench train $llama --threads 1 --steps 4 --mesh data=2,tensor=2
grep -q ', 4 ranks, ' out.txt || complain "bench train: $(cat out.txt)"

# Running statistics are cut by channels: an evaluation uses each rank's own, or those of the first along the batch.
norm="--model resnet20 --data synthetic:3x8x8,count=32,classes=4 --batch 8 --steps 2 --threads 1 --dtype f64 --json"
"$LOCKSTEP" train $norm > norm.json 2> err.txt || complain "resnet20: $(cat err.txt)"
for mesh in tensor=2 data=2,tensor=2; do
    expect 0 "" "$LOCKSTEP" train $norm --mesh $mesh --sync-batchnorm
    near "$(number loss out.txt)" "$(number loss norm.json)" 1e-9 || complain "resnet20 $mesh: $(cat out.txt norm.json)"
done

# ---- tactics: what plan prints is what --tactics takes; a line that says something else, and mistakes ----
expect 0 "" "$LOCKSTEP" plan $llama --mesh tensor=2 --tactics
cp out.txt tactics
grep -q '^model\.layers\.\*\.mlp\.down_proj\.weight: in@tensor$' tactics || complain "plan --tactics: $(cat tactics)"
"$LOCKSTEP" plan $llama --mesh tensor=2 > found 2> err.txt
expect 0 "" "$LOCKSTEP" plan $llama --mesh tensor=2 --tactics tactics
cmp -s found out.txt || complain "its own tactics make another plan: $(diff found out.txt)"
# Of every kind of model: names of one layer within others', a loss whose classes are split, channels, key-value heads
# with copies.
for i in {1..30}; do echo "{\"text\": \"text $i\", \"label\": \"of $((i % 3))\"}"; done > labels.jsonl
encoder="--model encoder --layers 2 --width 32 --heads 4 --context 16 --data jsonl:labels.jsonl --tokenizer byte"
encoder+=" --holdout 0.2 --batch 8"
for model in "$encoder" "$llama --untied" "--model cnn --data synthetic" "--model mlp --data synthetic" \
    "--model resnet20 --data synthetic:3x8x8 --batch 8" "${llama/llama/mixtral}"; do
    for mesh in tensor=2 tensor=4; do
        expect 0 "" "$LOCKSTEP" plan $model --mesh $mesh --tactics
        cp out.txt printed
        "$LOCKSTEP" plan $model --mesh $mesh --sections > found 2> err.txt
        expect 0 "" "$LOCKSTEP" plan $model --mesh $mesh --tactics printed --sections
        cmp -s found out.txt || complain "$model $mesh: its own tactics make another plan: $(diff found out.txt | head)"
    done
done
expect 0 "" "$LOCKSTEP" train $run --steps 1 --mesh tensor=2 --tactics tactics --json
"$LOCKSTEP" train $run --steps 1 --json > found.json 2> err.txt || complain "one step: $(cat err.txt)"
near "$(number last_batch_loss out.txt)" "$(number last_batch_loss found.json)" 1e-9 ||
    complain "with tactics: $(cat out.txt)"
echo 'no.such.state: out@tensor' > wrong
expect 2 "no.such.state" "$LOCKSTEP" train $run --steps 1 --mesh tensor=2 --tactics wrong
[ "$(grep -c '^lockstep' err.txt)" = 1 ] || complain "not one sentence: $(cat err.txt)"
expect 2 "tensor=5 splits nothing in this model: .*; the nearest extent that works is tensor=4" "$LOCKSTEP" train $run \
    --steps 1 --mesh tensor=5
expect 2 "give --mesh tensor=N" "$LOCKSTEP" plan $llama --tactics
expect 0 "" "$LOCKSTEP" plan $llama --mesh tensor=2 --measure
grep -q "critical path [0-9.]* ms" out.txt || complain "--measure of a mesh: $(cat out.txt)"
expect 2 "the ranks along tensor are on several hosts, so they cannot share their state" "$LOCKSTEP" plan $llama \
    --mesh tensor=2,data=4 --nnodes 2 --state shared

# ---- who shares a part of the state ----
says() { # says TEXT WORDS…: of `plan`
    expect 0 "" "$LOCKSTEP" plan $llama --batch 8 --overcommit "${@:2}"
    tr '\n' ' ' < out.txt | tr -s ' ' | grep -q "the state is $1 " ||
        complain "${*:2}: no '$1': $(grep -A1 'the state is' out.txt)"
}
says "split over 2 ranks along tensor, each part shared by 2 ranks" --mesh data=2,tensor=2
says "split over 2 ranks along tensor, each part shared by 2 ranks of each of 2 hosts" --mesh data=4,tensor=2 --nnodes 2
says "split over 2 ranks along tensor" --mesh tensor=2,data=4 --nnodes 2
says "split over 2 ranks along tensor and 2 along shard (stage 3), gathered once for 2 ranks on a host" \
    --mesh shard=2,tensor=2 --state replicated
says "split over 2 ranks along shard (stage 2)" --mesh shard=2 --state replicated --shard-stage 2
says "shared by the 2 ranks of each of 2 hosts" --mesh data=2,shard=2 --nnodes 2
says "split over 4 ranks along shard (stage 3), gathered once for 2 ranks on a host" --mesh shard=4 --nnodes 2
says "split over 2 ranks along shard (stage 3)" --mesh shard=2,data=2 --nnodes 2

# ---- the axis with most traffic belongs within hosts ----
hosts="$llama --batch 64 --overcommit"
pattern="warning: the tensor axis, .*, crosses host boundaries, with 4 ranks per host: "
expect 0 "$pattern--mesh data=2,tensor=4 keeps it within each host" "$LOCKSTEP" plan \
    $hosts --mesh tensor=4,data=2 --nnodes 2
pattern="the tensor axis, .*, crosses host boundaries, with 2 ranks per host: "
expect 0 "${pattern}limit the size of this axis to the number of ranks per host" "$LOCKSTEP" plan \
    $hosts --mesh data=2,tensor=4 --nnodes 4
for mesh in data=2,tensor=4 data=8; do
    expect 0 "" "$LOCKSTEP" plan $hosts --mesh $mesh --nnodes 2
    grep -q 'crosses host boundaries' err.txt && complain "$mesh: $(cat err.txt)"
done

# ---- a plan for 64 ranks, none of which is started ----
expect 0 "" "$LOCKSTEP" plan --model llama-3.2-1b --dtype bf16 --batch 64 --context 4096 -n 64 --mesh \
    data=2,shard=8,tensor=4 --nnodes 8 --overcommit
for text in 'all ranks +[0-9]+ bytes' 'split over 4 ranks along tensor and 8 along shard \(stage 3\)' \
    'along data, 2 ranks' 'along shard, 8 ranks' 'along tensor, 4 ranks' 'critical path [0-9.]+ ms'; do
    grep -qE "$text" out.txt || complain "plan of 64 ranks has no '$text': $(cat out.txt)"
done

exit $((wrong > 0))
