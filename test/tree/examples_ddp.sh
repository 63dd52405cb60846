#!/usr/bin/env bash
# examples_ddp.sh - the data-parallel examples: several ranks give the results of one, three ranks resume a checkpoint
# of two, `lockstep eval` reads it, what concepts prints is correct, and a model that is cut trains as a whole one.
# ctest: timeout 240, ranks 4
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
examples=$BUILD_DIR/examples
cd "$work"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN
fail() { echo "$*" >&2; exit 1; }
# number WORD FILE: the number after the last WORD in FILE.
number() { grep -oE "$1 [0-9.]+" "$2" | tail -1 | grep -oE '[0-9.]+$'; }
# close A B: relative difference at most 1e-4.
close() { awk -v a="${1:-x}" -v b="${2:-y}" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a > 0 && d <= 1e-4 * a) }'; }

# 330 samples in batches of 64: the last batch has 10, and its shares differ.
data=synthetic:3x32x32,count=330
"$examples/ddp_cnn" $data 1 one > one.txt
for ranks in 2 3; do
    "$LOCKSTEP" run -n $ranks "$examples/ddp_cnn" $data 1 at-$ranks > $ranks.txt 2> err.txt ||
        fail "$ranks ranks: $(cat $ranks.txt err.txt)"
    for what in 'train loss' 'test loss' accuracy; do
        close "$(number "$what" one.txt)" "$(number "$what" $ranks.txt)" ||
            fail "$what at one rank and at $ranks: $(cat one.txt $ranks.txt)"
    done
    grep -q '/83 samples' $ranks.txt && grep -q 'of 83/83' $ranks.txt ||
        fail "not each test sample once: $(cat $ranks.txt)"
    # The samples of the ranks add up to all samples.
    grep -oE '[0-9]+ samples' $ranks.txt | head -$ranks | awk '{ sum += $1 } END { exit sum != 330 }' ||
        fail "samples of $ranks ranks: $(cat $ranks.txt)"
done

# Three ranks resume what two saved, with the results of one rank, and `lockstep eval` reads it.
"$examples/ddp_cnn" $data 2 one > one.txt
"$LOCKSTEP" run -n 3 "$examples/ddp_cnn" $data 2 at-2 > three.txt 2> err.txt ||
    fail "resuming: $(cat three.txt err.txt)"
grep -q 'resuming from step 6' three.txt || fail "did not resume: $(cat three.txt)"
! grep -q 'epoch 1:' three.txt || fail "repeated epoch 1: $(cat three.txt)"
awk -v a="$(number accuracy three.txt)" 'BEGIN { exit !(a >= 95) }' || fail "learned too little: $(cat three.txt)"
for what in 'train loss' 'test loss' accuracy; do
    close "$(number "$what" one.txt)" "$(number "$what" three.txt)" ||
        fail "one and three ranks end differently: $(cat one.txt three.txt)"
done
"$LOCKSTEP" eval --load at-2 --model cnn --data $data > eval.txt
close "$(number accuracy three.txt)" "$(number accuracy eval.txt)" ||
    fail "eval: $(cat eval.txt), the example: $(cat three.txt)"

# A rank that fails reports the reason, and the other does not wait for it.
if "$LOCKSTEP" run -n 2 "$examples/ddp_cnn" no-such-data > out.txt 2>&1; then fail "trained without data"; fi
grep -q 'unknown data set: no-such-data' out.txt || fail "no reason given: $(cat out.txt)"

# Accumulating over micro-batches and ranks gives the same losses whatever their number; infer reads what rank 0 saved.
"$examples/ddp_mlp" 1 > mlp-1.txt
for ranks in 2 3; do
    "$examples/ddp_mlp" $ranks corners.safetensors > mlp.txt || fail "ddp_mlp with $ranks ranks: $(cat mlp.txt)"
    for epoch in 1 2 3; do
        close "$(number "epoch $epoch: loss" mlp-1.txt)" "$(number "epoch $epoch: loss" mlp.txt)" ||
            fail "epoch $epoch, $ranks ranks: $(cat mlp-1.txt mlp.txt)"
    done
    grep -q 'on 500 points' mlp.txt || fail "not each point once: $(cat mlp.txt)"
    "$examples/infer" corners.safetensors > infer.txt || fail "infer: $(cat infer.txt)"
    rm corners.safetensors
done
if "$examples/ddp_mlp" 2 no/such/directory/file > out.txt 2>&1; then fail \
    "saved into a directory that does not exist"; fi
grep -q 'rank 0: .*no/such/directory' out.txt || fail "no reason given: $(cat out.txt)"

# A model that is cut over the tensor axis has the losses of one rank, and each rank a part of the parameters.
"$examples/parallel" data=1 > parallel-1.txt
for axes in tensor=2 data=2,tensor=2 shard=2; do
    "$examples/parallel" $axes > parallel.txt || fail "parallel $axes: $(cat parallel.txt)"
    for step in 20 40 60; do
        close "$(number "step $step: loss" parallel-1.txt)" "$(number "step $step: loss" parallel.txt)" ||
            fail "step $step, $axes: $(cat parallel-1.txt parallel.txt)"
    done
    awk -v a="$(number has parallel-1.txt)" -v b="$(number has parallel.txt)" 'BEGIN { exit !(b > 0 && b < 0.6 * a) }' \
        ||
        fail "$axes: no part of the parameters: $(cat parallel.txt)"
done
if "$examples/parallel" tensr=2 > out.txt 2>&1; then fail "an unknown axis: $(cat out.txt)"; fi
grep -q 'did you mean tensor' out.txt || fail "no reason given: $(cat out.txt)"

# Reducing gradients by hand, as average or sum, trains as the built-in reduction does, with any number of ranks.
"$examples/ddp_by_hand" 1 built-in > by-hand-1.txt
for ranks in 1 2 3; do
    for way in average sum built-in; do
        "$examples/ddp_by_hand" $ranks $way > by-hand.txt || fail "ddp_by_hand, $ranks ranks, $way: $(cat by-hand.txt)"
        grep -q 'of all ranks are the same' by-hand.txt || fail "ranks diverge: $(cat by-hand.txt)"
        for epoch in 1 2 3; do
            close "$(number "epoch $epoch: loss" by-hand-1.txt)" "$(number "epoch $epoch: loss" by-hand.txt)" ||
                fail "epoch $epoch, $ranks ranks, $way: $(cat by-hand-1.txt by-hand.txt)"
        done
    done
done

# An operation of one's own, checked in every step, trains as data parallel as others.
LOCKSTEP_CHECK_OPERATIONS=1 "$examples/own_operation" > own-1.txt || fail "own_operation: $(cat own-1.txt)"
awk -v a="$(number accuracy own-1.txt)" 'BEGIN { exit !(a >= 95) }' || fail "learned too little: $(cat own-1.txt)"
for ranks in 2 3; do
    "$LOCKSTEP" run -n $ranks "$examples/own_operation" > own.txt 2> err.txt ||
        fail "own_operation, $ranks ranks: $(cat own.txt err.txt)"
    for what in 'test loss' accuracy; do
        close "$(number "$what" own-1.txt)" "$(number "$what" own.txt)" ||
            fail "own_operation, $ranks ranks, $what: $(cat own-1.txt own.txt)"
    done
done

# Two heads, one of which has labels for a third of the samples: the same losses with any number of ranks.
"$examples/heads" > heads-1.txt || fail "heads: $(cat heads-1.txt)"
awk -v a="$(number '^loss' heads-1.txt)" 'BEGIN { exit !(a > 0 && a < 0.05) }' ||
    fail "learned too little: $(cat heads-1.txt)"
for ranks in 2 3; do
    "$LOCKSTEP" run -n $ranks "$examples/heads" > heads.txt 2> err.txt ||
        fail "heads, $ranks ranks: $(cat heads.txt err.txt)"
    for what in 'step  50: loss' 'step 200: loss'; do
        close "$(number "$what" heads-1.txt)" "$(number "$what" heads.txt)" ||
            fail "heads, $ranks ranks, $what: $(cat heads-1.txt heads.txt)"
    done
done

# What concepts prints, checked independently: lists, sums and hashes.
for ranks in 2 3; do
    "$examples/concepts" $ranks > concepts.txt || fail "concepts $ranks: $(cat concepts.txt)"
    ! grep -q $'\033' concepts.txt || fail "colours in a file"
    for epoch in 0 1; do
        grep "epoch $epoch  rank" concepts.txt | sed 's/.*samples//' | tr ' ' '\n' | grep . | sort -n > seen.txt
        seq 0 10 | cmp -s - seen.txt || fail "epoch $epoch is not a partition: $(cat concepts.txt)"
    done
    [ "$(sed -n 's/ *epoch 0  rank/rank/p' concepts.txt)" != "$(sed -n 's/ *epoch 1  rank/rank/p' concepts.txt)" ] ||
        fail "no new order: $(cat concepts.txt)"
    awk '/before LK_SYNC/ { for (i = NF - 2; i <= NF; i++) sum[i - NF] += $i; n++ }
         /after LK_SYNC/ { for (i = NF - 2; i <= NF; i++) {
                               d = $i - sum[i - NF]; if (d < 0) d = -d; if (d > 1e-3) wrong = 1 }
                           m++ }
         END { exit wrong || n != m || n < 2 }' concepts.txt || fail "the sums: $(cat concepts.txt)"
    # Synchronised ranks have one hash in each step, different between steps; without synchronisation they differ from
    # step 1.
    awk -v ranks=$ranks '/^  (together|alone)/ {
             split("", seen); kinds = 0
             for (i = 1; i <= NF; i++) if (length($i) == 16) {
                 if (!($i in seen)) kinds++; seen[$i] = 1; last = $i; hashes++ }
             together = $1 == "together"
             if (kinds != (together || $3 == 0 ? 1 : ranks)) wrong = 1
             if (together) { if (last in steps) wrong = 1; steps[last] = 1 } }
         END { exit wrong || hashes != 10 * ranks }' concepts.txt || fail "the hashes: $(cat concepts.txt)"
done

# A GPT with collectives by hand: the losses of 2 and 3 ranks are those of one, and it learns.
for ranks in 1 2 3; do "$examples/ddp_gpt" $ranks 40 > gpt-$ranks.txt ||
    fail "ddp_gpt $ranks: $(cat gpt-$ranks.txt)"; done
for ranks in 2 3; do close "$(number loss gpt-1.txt)" "$(number loss gpt-$ranks.txt)" ||
    fail "ddp_gpt: $(cat gpt-1.txt gpt-$ranks.txt)"; done
awk -v a="$(number loss gpt-1.txt)" 'BEGIN { exit !(a > 0 && a < 2.6) }' ||
    fail "ddp_gpt learned too little: $(cat gpt-1.txt)"
