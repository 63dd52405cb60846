#!/usr/bin/env bash
# storm_layouts.sh - kills in jobs of eight layouts of two to eight ranks: a random rank is killed at a random moment,
# in a step, a gather, an exchange, a save or while it resumes. Each time the job ends by itself and names that rank,
# no process survives, the checkpoint loads, and the run that resumes in another layout ends within 1e-9 of an
# uninterrupted one of one rank. At the end it prints how many ranks were killed in which operation; in 100 rounds or
# more, kills must have hit sums and ranks outside of collectives, and transfers between stages where there are any.
#
#   ROUNDS=n storm_layouts.sh      200 rounds by default
#   storm_layouts.sh --experts     a model with experts, in layouts with the expert axis
#   storm_layouts.sh --pipeline    layouts with the pipeline axis, in every schedule
# ctest: timeout 7200
set -u
: "${LOCKSTEP:?the command}" "${SOURCE_DIR:?the tree}"
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
rounds=${ROUNDS:-200}
deadline=60 # seconds for a job to end after the kill; --timeout is 5
mark_jobs
save_every=1
operations=("all_reduce" "no collective")
steps=30 what=uninterrupted round=0
fail() { echo "round $round ($what): $*"; exit 1; }
layouts=(
    "data=2"
    "shard=4 --backend tcp"
    "data=2,shard=2 --state replicated"
    "tensor=2"
    "data=2,tensor=2 --backend tcp"
    "tensor=2 --backend tcp --pieces 4"
    "data=2,shard=2,tensor=2 --state replicated"
    "shard=4 on hosts of 2" # simulated ones
)
data="--model gpt --layers 2 --width 32 --heads 4 --context 16 --batch 8 --dropout 0.1 --clip 0.5 --threads 1"
if [ "${1:-}" = --experts ]; then
    layouts=("expert=2" "expert=4 --backend tcp" "data=2,expert=2" "shard=2,expert=2 --state replicated"
        "expert=2,tensor=2")
    # Steps take longer than saves: kills are in all exchanges, too.
    data="--model mixtral --layers 4 --width 64 --heads 4 --hidden 48 --experts 4 --context 32 --batch 8 --clip 0.5
          --router-loss 0.02 --threads 1"
    save_every=4
fi
if [ "${1:-}" = --pipeline ]; then
    layouts=("pipeline=2 --micro-batches 4" "pipeline=4 --micro-batches 8 --backend tcp --pipeline-schedule zero-bubble"
        "pipeline=2,data=2 --micro-batches 2 --pipeline-schedule gpipe" "pipeline=2,tensor=2 --micro-batches 4"
        "pipeline=2,shard=2 --state replicated --micro-batches 2"
        "shard=2,pipeline=2 --state replicated --micro-batches 4 --pipeline-schedule zero-bubble")
    data="--model gpt --layers 4 --width 64 --heads 4 --context 32 --batch 8 --dropout 0.1 --clip 0.5 --threads 1"
    save_every=4
    operations+=("send" "recv")
fi
options="$data --steps $steps --dtype f64 --optimizer adamw --seed 3 --eval-every -1
         --save-every $save_every --timeout 5"

killed_in() { # the operation that the ranks' table names; of an exchange of rows, which one
    local line
    line=$(sed -n 's/.*it was in #.*routes\.c:\([0-9]*\).*/\1/p' err.txt | head -1)
    if [ -n "$line" ]; then
        sed -n "${line}s|.*/\* \(.*\) \*/.*|\1|p" "$SOURCE_DIR/src/run/routes.c"
    elif grep -q "it was in " err.txt; then # transfers have no number
        sed -n 's/.*it was in \(#[0-9]* \)\{0,1\}\([a-z_]*\).*/\2/p' err.txt | head -1
    else
        echo "no collective"
    fi
}
train() { # train DIRECTORY LAYOUT WORDS…
    local directory=$1 layout=$2
    shift 2
    export EACH=${layout##* on hosts of }
    # shellcheck disable=SC2016,SC2086
    [ "$EACH" = "$layout" ] ||
        exec env "$mark" "$LOCKSTEP" run -n "$(ranks_of "$layout")" -- \
            bash -c 'export LOCKSTEP_HOST_ID=host-$((RANK / EACH)); exec "$@"' - \
            "$LOCKSTEP" train $options --save "$directory" --resume auto --mesh ${layout%% *} --backend mixed "$@"
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
: > phases.txt
for round in $(seq "$rounds"); do
    place=$((round % ${#layouts[@]})) lap=$((round / ${#layouts[@]}))
    layout=${layouts[$place]}
    other=${layouts[$((RANDOM % ${#layouts[@]}))]}
    ranks=$(ranks_of "$layout") victim=$((RANDOM % $(ranks_of "$layout"))) goal=$((RANDOM % (steps - 4)))
    what="SIGKILL to rank $victim of $ranks, $layout, after step $goal"
    rm -rf run
    if [ $(((place + lap) % 4)) = 0 ]; then # killed while it resumes: each layout, once in four laps
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
        killed_in >> phases.txt
        ! grep -e "<- missing" err.txt | sed 's/^\[rank [0-9]*\]//' | grep -qv "^ *rank $victim[ ,]" ||
            fail "the wrong rank: $(cat err.txt)"
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
sort phases.txt | uniq -c | sort -rn
for operation in "${operations[@]}"; do
    [ "$rounds" -lt 100 ] || grep -qx "$operation" phases.txt || { what=all; fail "no rank was killed in: $operation"; }
done
echo "$rounds kills in ${#layouts[@]} layouts, $late of them of ranks that had ended"
