#!/usr/bin/env bash
# kill_resume.sh - a run that is repeatedly killed with SIGKILL and resumed never loses its last checkpoint, never has
# an incomplete checkpoint, and ends with the same bits as an uninterrupted run.
#
#   kill_resume.sh [ROUNDS] [MODEL]
# ctest: timeout 240
set -eu
rounds=${1:-12} model=${2:-mlp}
work=$(mktemp -d)
pid=
trap 'if [ -n "$pid" ]; then kill -9 "$pid" 2>/dev/null || true; fi; rm -rf "$work"' EXIT
case $model in
mlp)
    options="--model mlp --data synthetic:64,count=2048 --batch 32 --save-every 10" steps=$((rounds * 125)) window=250
    ;;
cnn)
    options="--model cnn --data synthetic:3x32x32,count=256 --batch 8 --save-every 3" steps=$((rounds * 6)) window=2500
    ;;
*) echo "no such model: $model" >&2; exit 2 ;;
esac
options="$options --threads 1 --seed 7 --eval-every -1 --json"
# shellcheck source=test/wait.bash
. "$SOURCE_DIR/test/wait.bash"

field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([0-9a-f.]*\).*/\1/p" "$2"; }
saved_step() { # 0: none yet
    local step=
    if [ -e "$work/killed/state.json" ]; then step=$(field step "$work/killed/state.json" 2> /dev/null) || true; fi
    echo "${step:-0}"
}
has_advanced() { has_ended "$pid" || [ "$(saved_step)" -gt "$best" ]; }

# Each saved step has all its files; the linked checkpoint loads completely and is never older than before.
check_checkpoint() { # ROUND
    local step file
    for step in "$work"/killed/step-*; do
        case $step in *.tmp.* | *.old.* | *'*') continue ;; esac
        for file in model.safetensors optimizer.safetensors state.json; do
            if [ ! -e "$step/$file" ]; then echo "round $1: $step has no $file"; exit 1; fi
        done
    done
    if [ -e "$work/killed/model.safetensors" ]; then
        "$LOCKSTEP" eval --load "$work/killed" ${options%% --batch*} --threads 1 > /dev/null
        step=$(field step "$work/killed/state.json")
        if [ "$step" -lt "$best" ]; then echo "round $1: the checkpoint went from step $best to $step"; exit 1; fi
        best=$step
    elif [ "$best" -gt 0 ]; then
        echo "round $1: the checkpoint of step $best is missing"
        exit 1
    fi
}

# Trains `steps` steps whole, and once more with kills; sets `kills` and `best`, the step of the latest checkpoint that
# a kill left.
train_with_kills() {
    local whole killed round code left ended=no
    rm -rf "$work/whole" "$work/killed"
    # shellcheck disable=SC2086
    "$LOCKSTEP" train $options --steps "$steps" --save "$work/whole" > "$work/whole.json" 2> /dev/null
    whole=$(field hash "$work/whole.json")
    best=0 kills=0
    for round in $(seq "$rounds"); do
        # shellcheck disable=SC2086
        "$LOCKSTEP" train $options --steps "$steps" --save "$work/killed" --resume auto > "$work/killed.json" \
            2> "$work/killed.err" &
        pid=$!
        # Every third kill comes at any moment, the others after some progress: the test needs checkpoints to resume.
        if [ $((round % 3)) != 0 ]; then wait_until 60 has_advanced; fi
        pause_randomly 1 $window
        if kill -9 "$pid" 2> /dev/null; then kills=$((kills + 1)); fi
        code=0
        wait "$pid" 2> /dev/null || code=$?
        pid=
        if [ "$code" = 0 ]; then ended=yes; break; fi
        if [ "$code" != 137 ]; then echo "round $round: exit status $code: $(cat "$work/killed.err")"; exit 1; fi
        check_checkpoint "$round"
    done
    if [ "$ended" = no ]; then
        # shellcheck disable=SC2086
        "$LOCKSTEP" train $options --steps "$steps" --save "$work/killed" --resume auto > "$work/killed.json" \
            2> "$work/killed.err"
    fi
    killed=$(field hash "$work/killed.json")
    if [ -z "$whole" ] || [ "$whole" != "$killed" ]; then
        echo "uninterrupted: $whole; killed $kills times: $killed"
        exit 1
    fi
    cmp "$work/whole/model.safetensors" "$work/killed/model.safetensors"
    cmp "$work/whole/optimizer.safetensors" "$work/killed/optimizer.safetensors"
    left=$(find "$work/killed" -name '*.tmp.*' -o -name '*.old.*' -o -name '.link.*' | wc -l)
    if [ "$left" != 0 ]; then echo "leftover files: $(find "$work/killed")"; exit 1; fi
}

# A machine may be so fast that the run ends before it was killed often enough: then it gets more steps.
for more in 1 2 3 4 5; do
    train_with_kills
    if [ "$kills" -ge 3 ] && [ "$best" -gt 0 ]; then break; fi
    if [ $more = 5 ]; then echo "only $kills kills of $steps steps, at step $best: too few for this test"; exit 1; fi
    steps=$((steps * 4))
done
echo "$steps steps, killed $kills times, last checkpoint at step $best: the same result"
