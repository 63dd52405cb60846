#!/usr/bin/env bash
# cli_experts.sh - the axis expert at the command: training, evaluation and plans of a model whose experts are split
# over ranks; checkpoints that cross from one mesh to another amid a run; a rank that is killed; mistakes in one
# sentence.
# ctest: timeout 300, ranks 4
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

lockstep=$LOCKSTEP
for _ in $(seq 40); do echo "All: speak, speak. First Citizen: you are all resolved rather to die than to famish?"; \
    done > text.txt
data="--data text:text.txt --tokenizer char --batch 6 --threads 1 --seed 3 --dtype f64"
small="--model mixtral --layers 2 --heads 2 --width 16 --hidden 24 --experts 4 --context 16 $data"
far_from() { # far_from REFERENCE OTHER: complains where what they saved differs
    far=$(python3 "$SOURCE_DIR/test/cli/layouts.py" 1e-9 "$1" "$2" 2>&1) || complain "$2: $far"
}

# ---- a run goes on in another mesh ----
expect 0 "" "$lockstep" train $small --eval-every 4 --steps 8 --save one
expect 0 "" "$lockstep" train $small --eval-every 4 --steps 3 --save run --mesh expert=2
expect 0 "" "$lockstep" train --resume auto --steps 5 --save run --mesh shard=2,expert=2 --check-every 1
expect 0 "" "$lockstep" train --resume auto --steps 7 --save run --mesh expert=4 --shard-stage 2
expect 0 "" "$lockstep" train --resume auto --steps 8 --save run --mesh data=1
far_from one run
head -c 20000 run/model.safetensors | grep -aq "model.layers.1.block_sparse_moe.experts.3.w2.weight" ||
    complain "files of ranks with different experts do not hold the experts apart"
loss_of() { field loss < out.txt; }
expect 0 "" "$lockstep" eval --load run --json
one=$(loss_of)
for mesh in expert=2 data=2,expert=2; do
    expect 0 "" "$lockstep" eval --load run --mesh "$mesh" --json
    [ -n "$one" ] && awk -v a="$one" -v b="$(loss_of)" 'BEGIN { exit !((a - b)^2 < 1e-18 * a * a) }' ||
        complain "eval --mesh $mesh: a loss of $(loss_of), not $one"
done
expect 0 "" "$lockstep" train $small --eval-every -1 --steps 2 --mesh expert=2 --dtype bf16 --router-loss 0.1
expect 0 "" "$lockstep" bench train $small --mesh expert=2 --steps 2
expect 0 "" "$lockstep" generate --load run --prompt "All: " --tokens 6 --temperature 0
mv out.txt text_of_one.txt
expect 0 "" "$lockstep" generate --load run --prompt "All: " --tokens 6 --temperature 0 --mesh expert=2
cmp -s text_of_one.txt out.txt || complain "generate --mesh expert=2: $(cat out.txt), not $(cat text_of_one.txt)"

# ---- before a rank starts ----
expect 0 "" "$lockstep" plan $small --mesh expert=4
grep -q "along expert, 4 ranks: .* collectives" out.txt || complain "plan: $(cat out.txt)"
expect 0 "" "$lockstep" plan $small --mesh shard=2,expert=2
grep -q "along shard and expert, 4 ranks" out.txt || complain "plan: $(cat out.txt)"
grep -q "the state is split over 2 ranks along expert and 2 along shard (stage 3)" out.txt ||
    complain "plan: $(cat out.txt)"
expect_text 2 "has 2 ranks along expert, but the model has no experts: use the axis data instead" "$lockstep" train \
    --model gpt $data --steps 1 --mesh expert=2
expect_text 2 "has 3 ranks along expert, which do not divide the 4 experts" "$lockstep" train $small --steps 1 \
    --mesh expert=3
expect_text 2 "leaves and ranks with different experts" "$lockstep" train $small --steps 1 --mesh expert=2 \
    --reproducible --batch 8
expect_text 2 "the ranks have different experts, so they cannot share their state" "$lockstep" train $small --steps 1 \
    --mesh expert=2 --state shared

# ---- a rank that is killed ----
mark_jobs
(exec env "$mark" "$lockstep" train $small --eval-every -1 --steps 100000 --save killed --save-every 1 --timeout 5 \
    --mesh expert=2) > out.txt 2> err.txt < /dev/null &
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
expect 0 "" "$lockstep" train --resume auto --save killed --steps $((from + 2)) --mesh expert=4

exit $((wrong > 0))
