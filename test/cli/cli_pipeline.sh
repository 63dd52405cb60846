#!/usr/bin/env bash
# cli_pipeline.sh - the axis pipeline at the command: training, evaluation and generation of a model that is cut into
# stages; checkpoints that cross from one mesh to another amid a run; the same bits in every layout; a rank that is
# killed; mistakes in one sentence.
# ctest: timeout 300, ranks 4
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

lockstep=$LOCKSTEP
for _ in $(seq 40); do echo "All: speak, speak. First Citizen: you are all resolved rather to die than to famish?"; \
    done > text.txt
data="--data text:text.txt --tokenizer char --batch 6 --threads 1 --seed 3"
small="--model gpt --layers 4 --heads 2 --width 16 --context 16 $data"
far_from() { # far_from REFERENCE OTHER: complains where what they saved differs
    far=$(python3 "$SOURCE_DIR/test/cli/layouts.py" 1e-9 "$1" "$2" 2>&1) || complain "$2: $far"
}

# ---- a run goes on in another mesh ----
expect 0 "" "$lockstep" train $small --dtype f64 --clip 0.5 --eval-every 4 --steps 8 --save one
expect 0 "" "$lockstep" train $small --dtype f64 --clip 0.5 --eval-every 4 --steps 3 --save run --mesh pipeline=2 \
    --accumulate 3
expect 0 "" "$lockstep" train --resume auto --steps 5 --save run --mesh data=2,pipeline=2 --check-every 1
expect 0 "" "$lockstep" train --resume auto --steps 7 --save run --mesh pipeline=4 --pipeline-schedule gpipe
expect 0 "" "$lockstep" train --resume auto --steps 8 --save run --mesh data=1
far_from one run
loss_of() { field loss < out.txt; }
expect 0 "" "$lockstep" eval --load run --json
one=$(loss_of) samples=$(field samples < out.txt)
for mesh in pipeline=2 pipeline=2,data=2; do
    expect 0 "" "$lockstep" eval --load run --mesh "$mesh" --json
    [ -n "$one" ] && awk -v a="$one" -v b="$(loss_of)" 'BEGIN { exit !((a - b)^2 < 1e-18 * a * a) }' ||
        complain "eval --mesh $mesh: a loss of $(loss_of), not $one"
    [ "$samples" = "$(field samples < out.txt)" ] || complain "eval --mesh $mesh: $(cat out.txt), not $samples samples"
done
expect 0 "" "$lockstep" generate --load run --prompt "All: " --tokens 6 --temperature 0
mv out.txt text_of_one.txt
for mesh in pipeline=2 pipeline=4 pipeline=2,tensor=2; do
    expect 0 "" "$lockstep" generate --load run --prompt "All: " --tokens 6 --temperature 0 --mesh "$mesh"
    cmp -s out.txt text_of_one.txt || complain "generate --mesh $mesh: $(cat out.txt)"
done

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
expect 2 "has 9 stages along pipeline, and the model can be cut into" "$lockstep" train --model mlp --data synthetic \
    --steps 1 --mesh pipeline=9
expect 2 "have different stages of the model, on several hosts, so they cannot share their state" "$lockstep" plan \
    $small --mesh pipeline=2,data=2 --nnodes 2 --state shared
expect 2 "adds over all" "$lockstep" train --model resnet20 --data synthetic --batch 8 --threads 1 --steps 1 \
    --sync-batchnorm --reproducible --mesh pipeline=2

# ---- a rank that is killed ----
mark_jobs
(exec env "$mark" "$lockstep" train $small --eval-every -1 --steps 100000 --save killed --save-every 1 --timeout 5 \
    --mesh pipeline=2 --accumulate 3) > out.txt 2> err.txt < /dev/null &
job=$!
killed_saved() { [ -e killed/state.json ] && [ "$(field step < killed/state.json)" -ge 2 ]; }
rank_runs() { victim_pid=$(rank_pid 1) && [ -n "$victim_pid" ]; }
wait_until_job 60 rank_runs && wait_until_job 60 killed_saved || complain "it did not start: $(cat err.txt)"
kill -KILL "$victim_pid"
await_end 60
[ "$code" != 0 ] && grep -Eq "rank 1( |,|.*)(SIGKILL|signal 9|Killed|killed)" err.txt ||
    complain "exit status $code, and no message that rank 1 was killed: $(cat err.txt)"
expect_no_members 0
from=$(field step < killed/state.json)
expect 0 "" "$lockstep" train --resume auto --save killed --steps $((from + 2)) --mesh data=2,pipeline=2

exit $((wrong > 0))
