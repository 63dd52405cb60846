#!/usr/bin/env bash
# cli_stages.sh - what `lockstep plan` says of a mesh with the pipeline axis: its stages and what they cost, its
# picture, its traffic; mistakes, each in one sentence; --micro-batches, which is recorded as --accumulate.
# ctest: timeout 120, ranks 2
set -u
: "${LOCKSTEP:?the command}" "${SOURCE_DIR:?the tree}"
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
wrong=0
complain() { echo "cli_stages: $*" >&2; wrong=1; }
ok() { "$LOCKSTEP" "$@" > out.txt 2> err.txt || complain "$*: exit status $?: $(tail -n 3 err.txt)"; }
refused() { # refused TEXT WORDS…: exit status 2, and one sentence
    "$LOCKSTEP" "${@:2}" > out.txt 2> err.txt
    [ $? = 2 ] || complain "${*:2}: not refused: $(tail -n 2 err.txt)"
    grep -qF -- "$1" err.txt || complain "${*:2}: no '$1': $(cat err.txt)"
    [ "$(grep -c '^lockstep' err.txt)" = 1 ] || complain "not one sentence: $(cat err.txt)"
}
said() { tr -s ' \n' ' ' < out.txt | grep -qE -- "$1" || complain "no '$1': $(cat out.txt)"; }

for i in $(seq 60); do echo "the quick brown fox $i jumps over $((i * 7 % 13)) lazy dogs"; done > book.txt
small="--model gpt --layers 4 --width 32 --heads 4 --context 16 --data text:book.txt --tokenizer char --batch 8"
small="$small --threads 1"

# ---- plan ----
# shellcheck disable=SC2086
{
    ok plan $small --mesh pipeline=2 --micro-batches 8
    said 'pipeline of 2 stages, schedule 1f1b, 8 micro-batches'
    said 'stage 0: blocks 0 to [12] and what precedes them; per micro-batch [0-9.]+ ms forward'
    said 'stage 1: blocks [23] to 3 and what follows them; .*; activations of 1 micro-batch'
    said 'because the stages are unequal'
    # On several hosts one more of each stage, which hides messages.
    ok plan $small --mesh pipeline=2 --micro-batches 8 --nnodes 2
    said 'stage 0: .*; activations of 3 micro-batches; .*stage 1: .*; activations of 2 micro-batches'
    # A head of 50,304 words is more than the blocks: they are in the other stage.
    ok plan $small --vocabulary 50304 --mesh pipeline=2 --micro-batches 8
    said 'stage 0: blocks 0 to [23] and what precedes them'
    said 'stage 1: (what follows all blocks|block 3 and what follows it);'
    # What the user's stages cost, and what moving a block would gain.
    ok plan $small --mesh pipeline=2 --micro-batches 8 --stages 0,1-3
    said 'stage 1 is the slowest: with one of its blocks moved to stage 0 \(--stages 0-1,2-3\), a step would take [0-9]'
    ok plan $small --mesh pipeline=2 --micro-batches 1
    said '1 micro-batch for 2 stages: some stages always wait; use --micro-batches 8 or more'
    # A message for each micro-batch, and one for the gradient of the tied weights.
    ok plan $small --mesh pipeline=4 --micro-batches 4 --json
    grep -qE '"stages": \[\{"first_block": 0, .*"slots": 4.*"slots": 1,' out.txt ||
        complain "JSON: $(cat out.txt)"
    grep -qE '"traffic": \[\{"axes": "pipeline", "collectives": 5, "bytes": [1-9]' out.txt ||
        complain "traffic: $(cat out.txt)"
    ok plan $small --mesh pipeline=2,data=2 --micro-batches 4 --pipeline-schedule zero-bubble --schedule-picture p.svg
    [ "$(grep -c '<title>stage [01], ' p.svg)" = 20 ] || complain "runs in the picture: $(grep -c '<title>' p.svg)"
    python3 -c 'import xml.etree.ElementTree as t; t.parse("p.svg")' || complain "the picture is no XML"
    ok plan $small --mesh pipeline=2 --micro-batches 4 --measure
    said 'critical path [0-9.]+ ms'

    refused '--stages applies only to the pipeline axis of a mesh' plan $small -n 2 --stages 0-1,2-3
    refused '--pipeline-schedule applies only to the pipeline axis' plan $small --mesh data=2 --pipeline-schedule gpipe
    refused 'draws the stages of the pipeline axis: give --mesh pipeline=N' plan $small -n 2 --schedule-picture q.svg
    refused "'2f2b' is not one of 1f1b|gpipe|zero-bubble" plan $small --mesh pipeline=2 --pipeline-schedule 2f2b
    refused 'stages "0-1,3": stage 1 begins with block 3; expected block 2' plan $small --mesh pipeline=2 --stages 0-1,3
    refused '1 stage, but the mesh has 2 ranks along pipeline' plan $small --mesh pipeline=2 --stages 0-3
    refused 'expected the blocks of each stage, such as 0-5,6-11' plan $small --mesh pipeline=2 --stages a,b
    refused 'pipeline stages, but the model can be cut into at most' plan --model mlp --mesh pipeline=32 --batch 32
    refused 'but the stages of a pipeline compute one leaf after another' train --model resnet20 --batch 16 --steps 1 \
        --data synthetic:3x8x8,count=64 --sync-batchnorm --mesh pipeline=2 --reproducible
    # Slices of the state do not change when gradients of weights are computed.
    ok plan $small --mesh pipeline=2,shard=2 --state replicated --shard-stage 2 --pipeline-schedule zero-bubble
    said 'schedule zero-bubble.* stage 1: .* ms weight gradients'
}

# ---- the name that is recorded ----
# shellcheck disable=SC2086
ok train $small --steps 1 --mesh pipeline=2 --micro-batches 4 --save run
grep -q '"accumulate":"4"' run/state.json || complain "the record of --micro-batches: $(cat run/state.json)"
printf 'micro-batches = 2\nmesh = pipeline=2\n' > stages.conf
# shellcheck disable=SC2086
ok plan $small --config stages.conf
said 'pipeline of 2 stages, schedule 1f1b, 2 micro-batches'
# shellcheck disable=SC2086
ok plan $small --config stages.conf --accumulate 4 # the command line has precedence, by either name
said 'pipeline of 2 stages, schedule 1f1b, 4 micro-batches'
[ $wrong = 0 ] && echo ok
exit $wrong
