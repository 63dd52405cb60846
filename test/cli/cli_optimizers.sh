#!/usr/bin/env bash
# cli_optimizers.sh - every optimizer from the shell: the same bits on any number of ranks, with shared and replicated
# state, and after a resume; its options in help, configuration files, records and plans; mistakes.
# ctest: timeout 300
set -u
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"

job_options="--model mlp --hidden 19 --data synthetic:11,classes=4,count=120 --batch 20 --threads 1 --seed 3 --lr 0.01"
job_options="$job_options --weight-decay 0.05"

# train DIRECTORY OPTIONS…: prints the digest of the weights and that of the optimizer's state.
train() {
    local directory=$1
    shift
    "$LOCKSTEP" train $job_options --save "$directory" "$@" > "$directory.txt" 2>&1 ||
        complain "train $*: $(cat "$directory.txt")"
    sha256sum < "$directory/model.safetensors"
    sha256sum < "$directory/optimizer.safetensors"
}
# same NAME DIGEST DIGEST
same() { [ -n "$2" ] && [ "$2" = "$3" ] || complain "$1: other bits: $2 and $3"; }
names() {
    head -c 4096 "$1/optimizer.safetensors" | grep -aoE '"fc1.bias\.[a-z_]+"' | tr -d '"' | cut -d. -f3 | tr '\n' ' '
}

check() { # NAME MOMENTS OPTIONS…
    local name=$1 moments=$2
    shift 2
    local one
    one=$(train "$name-1" "$@" --steps 6 --reproducible)
    [ "$(names "$name-1")" = "$moments " ] || complain "$name: its state is $(names "$name-1")"
    same "$name on 3 ranks" "$one" "$(train "$name-3" "$@" --steps 6 --reproducible -n 3)"
    same "$name with replicated state" "$one" "$(train "$name-2" "$@" --steps 6 --reproducible -n 2 --state replicated)"
    train "$name-half" "$@" --steps 3 --reproducible -n 2 > half.txt
    expect 0 "" "$LOCKSTEP" train --resume "$name-half" --save "$name-half" --steps 6 -n 2 --threads 1
    same "$name resumed by its record" "$one" \
        "$(sha256sum < "$name-half/model.safetensors"; sha256sum < "$name-half/optimizer.safetensors")"
    same "$name in bf16" "$(train "$name-b" "$@" --steps 4 --dtype bf16 --clip 0.1 -n 2)" \
        "$(train "$name-c" "$@" --steps 4 --dtype bf16 --clip 0.1 -n 2 --state replicated)"
    same "$name with accumulation" "$(train "$name-d" "$@" --steps 4 --accumulate 2 -n 2)" \
        "$(train "$name-e" "$@" --steps 4 --accumulate 2 -n 2 --state replicated)"
}

check sgd "momentum_buffer" --optimizer sgd --momentum 0.9
check lion "exp_avg" --optimizer lion
check rmsprop "grad_avg momentum_buffer square_avg" --optimizer rmsprop --centered --momentum 0.5 --alpha 0.9
check adagrad "sum" --optimizer adagrad --lr-decay 0.1 --initial-accumulator-value 0.2

# ---- options ----
expect 0 "" "$LOCKSTEP" info lion-1
grep -q -- '--optimizer lion' out.txt || complain "info of a checkpoint: $(cat out.txt)"
"$LOCKSTEP" train --help > help.txt
for word in "adamw, lion, rmsprop or adagrad" "--alpha X" "--centered" "--lr-decay X" "--initial-accumulator-value X"; \
    do
    tr -s ' \n' ' ' < help.txt | grep -qF -- "$word" || complain "help has no '$word'"
done
printf 'optimizer = rmsprop\ncentered = true\nmomentum = 0.5\nalpha = 0.9\n' > rmsprop.conf
same "a configuration file" "$(train config-1 --config rmsprop.conf --steps 6 --reproducible)" \
    "$(sha256sum < rmsprop-1/model.safetensors; sha256sum < rmsprop-1/optimizer.safetensors)"

# What a plan says: one array of state for each moment.
state() { "$LOCKSTEP" plan $job_options --json "$@" | field optimizer_state; }
one=$(state --optimizer lion)
[ "$one" -gt 0 ] && [ "$(state --optimizer sgd)" = 0 ] && [ "$(state --optimizer rmsprop)" = "$one" ] &&
    [ "$(state --optimizer adam)" = $((2 * one)) ] &&
        [ "$(state --optimizer rmsprop --centered --momentum 0.5)" = $((3 * one)) ] ||
    complain "bytes of state: $one, $(state --optimizer adam), $(state --optimizer rmsprop --centered --momentum 0.5)"
"$LOCKSTEP" plan $job_options --optimizer adagrad --initial-accumulator-value 0.5 --sections |
    grep -q 'adagrad.*initial_accumulator_value 0.5' ||
    complain "the plan does not show the settings"

# ---- mistakes ----
expect_text 2 "--alpha applies only to --optimizer rmsprop" "$LOCKSTEP" train $job_options --alpha 0.5
expect_text 2 "--centered applies only to --optimizer rmsprop" "$LOCKSTEP" train $job_options --optimizer lion \
    --centered
expect_text 2 "--epsilon applies only to --optimizer adam, adamw, rmsprop, adagrad" "$LOCKSTEP" train $job_options \
    --optimizer lion --epsilon 1e-6
expect_text 2 "--momentum applies only to --optimizer sgd, rmsprop" "$LOCKSTEP" train $job_options --optimizer adagrad \
    --momentum 0.5
expect_text 2 "--betas takes two numbers" "$LOCKSTEP" train $job_options --optimizer lion --betas 0.9
expect_text 2 "--alpha: 1 is out of range" "$LOCKSTEP" train $job_options --optimizer rmsprop --alpha 1
expect_text 2 "is not one of sgd|adam|adamw|lion|rmsprop|adagrad" "$LOCKSTEP" train $job_options --optimizer lions
# Another optimizer has other state; options of the recorded one are not taken over.
expect 2 "optimizer state does not match" "$LOCKSTEP" train --resume rmsprop-1 --optimizer adam --steps 9 --threads 1
expect 2 "optimizer state does not match" "$LOCKSTEP" train --resume lion-1 --optimizer adam --steps 9 --threads 1

exit $((wrong > 0))
