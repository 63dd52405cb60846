#!/usr/bin/env bash
# cli_pipeline.sh - the pipeline axis at the command: training, evaluation and generation of a model that is cut into
# stages; checkpoints that cross from one mesh to another amid a run; the same bits in every layout; a rank that is
# killed; mistakes in one sentence.
# ctest: timeout 300, ranks 4
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
# shellcheck source=test/cli/axis.bash
. "$SOURCE_DIR/test/cli/axis.bash"

lockstep=$LOCKSTEP
small="--model gpt --layers 4 --heads 2 --width 16 --context 16 $data"

# ---- a run goes on in another mesh ----
expect 0 "" "$lockstep" train $small --dtype f64 --clip 0.5 --eval-every 4 --steps 8 --save one
expect 0 "" "$lockstep" train $small --dtype f64 --clip 0.5 --eval-every 4 --steps 3 --save run --mesh pipeline=2 \
    --accumulate 3
expect 0 "" "$lockstep" train --resume auto --steps 5 --save run --mesh data=2,pipeline=2 --check-every 1
expect 0 "" "$lockstep" train --resume auto --steps 7 --save run --mesh pipeline=4 --pipeline-schedule gpipe
expect 0 "" "$lockstep" train --resume auto --steps 8 --save run --mesh data=1
far_from one run
eval_alike run pipeline=2 pipeline=2,data=2
generate_alike run pipeline=2 pipeline=4 pipeline=2,tensor=2

# ---- batch norm of each micro-batch, with its running statistics ----
norms="--model resnet20 --data synthetic:3x8x8,count=32 --batch 8 --threads 1 --dtype f64 --eval-every -1 --steps 3"
expect 0 "" "$lockstep" train $norms --accumulate 2 --save norms
expect 0 "" "$lockstep" train $norms --mesh pipeline=2 --micro-batches 2 --save staged-norms
grep -q 'layer1.0.bn1.running_mean' norms/model.safetensors || complain "no running statistics"
far_from norms staged-norms

# ---- the slowest stage: what else the machine does may hide it in one run, hardly in three ----
slowest="stage 1 \(rank 1\) was the slowest, by [0-9.]+ ms of a [0-9.]+ ms step: moving one of its 5 blocks \
(to a neighbouring stage \(--stages\) would save about [0-9.]+ ms|would make another stage the slowest)"
for _ in 1 2 3; do
    expect 0 "" "$lockstep" train --model gpt --layers 6 --heads 2 --width 64 --context 64 $data --eval-every -1 \
        --steps 20 --mesh pipeline=2 --stages 0,1-5 --micro-batches 3
    grep -Eq "$slowest" err.txt && break
done
grep -Eq "$slowest" err.txt || complain "no note of the slowest stage: $(cat err.txt)"

# ---- one result in every layout ----
bits="$small --eval-every -1 --reproducible layout --batch 8 --clip 0.5"
expect 0 "" "$lockstep" train $bits --steps 4 --save bits
expect 0 "" "$lockstep" train $bits --steps 2 --save more --mesh pipeline=2
expect 0 "" "$lockstep" train --resume auto --steps 3 --save more --mesh pipeline=2,data=2
expect 0 "" "$lockstep" train --resume auto --steps 4 --save more --mesh pipeline=2,shard=2
cmp -s bits/model.safetensors more/model.safetensors || complain "stages give other bits with --reproducible layout"

# ---- state that the ranks of a stage share: the bits of those that do not ----
for state in shared replicated; do
    expect 0 "" "$lockstep" train $bits --steps 3 --save $state --mesh pipeline=2,data=2 --state $state
    grep -q "^the state is split over 2 ranks along pipeline, each part shared by 2 ranks" \
        <("$lockstep" plan $bits --mesh pipeline=2,data=2 --state $state) && found=shared || found=replicated
    [ $found = $state ] || complain "--state $state is planned as $found"
done
cmp -s shared/model.safetensors replicated/model.safetensors || complain "stages that share their state have other bits"

# ---- mistakes ----
expect 2 "has 9 pipeline stages, but the model can be cut into at most" "$lockstep" train --model mlp --data synthetic \
    --steps 1 --mesh pipeline=9
expect 2 "have different stages of the model on several hosts, so they cannot share their state" "$lockstep" plan \
    $small --mesh pipeline=2,data=2 --nnodes 2 --state shared
expect 2 "sums over all" "$lockstep" train --model resnet20 --data synthetic --batch 8 --threads 1 --steps 1 \
    --sync-batchnorm --reproducible --mesh pipeline=2

# ---- a rank that is killed ----
kill_a_rank data=2,pipeline=2 $small --mesh pipeline=2 --accumulate 3

exit $((wrong > 0))
