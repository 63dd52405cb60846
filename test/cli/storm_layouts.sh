#!/usr/bin/env bash
# storm_layouts.sh - kills in jobs of six layouts of two to eight ranks: a random rank is killed at a random moment, in
# a step, a gather, an exchange, a save or while it resumes. Each time the job ends by itself and names that rank, no
# process survives, the checkpoint loads, and the run that resumes in another layout ends within 1e-9 of an
# uninterrupted one of one rank.
#
#   ROUNDS=n storm_layouts.sh      200 rounds by default
#   storm_layouts.sh --experts     a model with experts, in layouts with the axis expert
# ctest: timeout 7200
set -u
: "${LOCKSTEP:?the command}" "${SOURCE_DIR:?the tree}"
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
rounds=${ROUNDS:-200}
deadline=60 # seconds for a job to end after the kill; --timeout is 5
mark_jobs
steps=30 what=uninterrupted round=0
fail() { echo "round $round ($what): $*"; exit 1; }
layouts=(
    "data=2"
    "shard=4 --backend tcp"
    "data=2,shard=2 --state replicated"
    "tensor=2"
    "data=2,tensor=2 --backend tcp"
    "data=2,shard=2,tensor=2 --state replicated"
)
data="--model gpt --layers 2 --width 32 --heads 4 --context 16 --batch 8 --dropout 0.1 --clip 0.5 --threads 1"
if [ "${1:-}" = --experts ]; then
    layouts=("expert=2" "expert=4 --backend tcp" "data=2,expert=2" "shard=2,expert=2" "expert=2,tensor=2")
    data="--model mixtral --layers 2 --width 32 --heads 4 --hidden 24 --experts 4 --context 16 --batch 8 --clip 0.5
          --router-loss 0.02 --threads 1"
fi
options="$data --steps $steps --dtype f64 --optimizer adamw --seed 3 --eval-every -1 --save-every 1 --timeout 5"

train() { # train DIRECTORY LAYOUT WORDS…
    local directory=$1 layout=$2
    shift 2
    # shellcheck disable=SC2086
    exec env "$mark" "$LOCKSTEP" train $options --save "$directory" --resume auto --mesh $layout "$@"
}
ranks_of() { # of "data=2,shard=4 --shard-stage 1"
    local axis product=1
    for axis in $(echo "${1%% *}" | tr ',' ' '); do product=$((product * ${axis#*=})); done
    echo $product
}
saved() { if [ -e run/state.json ]; then field step < run/state.json; else echo 0; fi; }
has_saved() { [ "$(saved)" -ge "$1" ]; }
rank_runs() { victim_pid=$(rank_pid "$1") && [ -n "$victim_pid" ]; }

(train whole data=1) > out.txt 2> err.txt || fail "$(cat err.txt)"
late=0
for round in $(seq "$rounds"); do
    layout=${layouts[$((round % ${#layouts[@]}))]}
    other=${layouts[$((RANDOM % ${#layouts[@]}))]}
    ranks=$(ranks_of "$layout") victim=$((RANDOM % $(ranks_of "$layout"))) goal=$((RANDOM % (steps - 4)))
    what="SIGKILL to rank $victim of $ranks, $layout, after step $goal"
    rm -rf run
    if [ $((round % 4)) = 0 ]; then # killed while it resumes
        (train run "$other" --steps 5) > out.txt 2> err.txt < /dev/null || fail "$(cat err.txt)"
        goal=0
    fi
    (train run "$layout") > out.txt 2> err.txt < /dev/null &
    job=$!
    wait_until_job 60 rank_runs $victim && wait_until_job 60 has_saved $goal || fail "$(cat err.txt)"
    pause_randomly 0 60
    kill -KILL "$victim_pid" 2> /dev/null || late=$((late + 1))
    await_end $deadline
    if [ $code = 0 ]; then [ "$(saved)" = $steps ] || fail "exit status 0 at step $(saved): $(cat err.txt)"
    else
        grep -Eq "rank $victim( |,|.*)(SIGKILL|signal 9|Killed|killed)" err.txt ||
            fail "no message that rank $victim was killed: $(cat err.txt)"
        # Ranks that fail because of it name it too, not each other.
        ! grep -e "<- missing" err.txt | grep -qv "^ *rank $victim[ ,]" || fail "the wrong rank: $(cat err.txt)"
    fi
    from=$(saved)
    (train run "$other") > out.txt 2> err.txt < /dev/null ||
        fail "resumed from step $from on $other: $(cat err.txt)"
    far=$(python3 "$SOURCE_DIR/test/cli/layouts.py" 1e-9 whole run 2>&1) ||
        fail "resumed from step $from on $other: $far"
    left=$(find run -name '*.tmp.*' -o -name '*.old.*' -o -name '.link.*')
    [ -z "$left" ] || fail "leftover files: $left"
    expect_no_members 0
    echo "round $round: $what; resumed from step $from on $other, off by ${far%% *}"
done
echo "$rounds kills in ${#layouts[@]} layouts, $late of them of ranks that had ended"
