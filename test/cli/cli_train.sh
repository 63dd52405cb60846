#!/usr/bin/env bash
# cli_train.sh - `lockstep train`, `eval`, `predict`, `plan` and `bench`: results, logs, configuration, resuming.
# ctest: timeout 240
set -eu
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
small="--model cnn --data synthetic:3x32x32,count=192 --batch 64 --threads 1"

# Standard output has only the JSON results; messages for people go to standard error.
"$LOCKSTEP" train $small --epochs 2 --save run --log log.jsonl --json > out.json 2> err.txt
[ "$(wc -l < out.json)" = 1 ] || fail "standard output has more than the results: $(cat out.json)"
loss=$(field loss < out.json) accuracy=$(field accuracy < out.json) hash=$(field hash < out.json)
[ -n "$loss" ] && [ -n "$accuracy" ] && [ -n "$hash" ] || fail "results: $(cat out.json)"
grep -q 'accuracy' err.txt || fail "no accuracy: $(cat err.txt)"
[ "$(grep -c '"event": *"step"' log.jsonl)" = 6 ] || fail "the log: $(cat log.jsonl)"
[ "$(grep -c '"event": *"evaluated"' log.jsonl)" = 2 ] || fail "the log: $(cat log.jsonl)"
# train_loss is the mean of the last epoch; last_batch_loss is separate.
steps=$(grep '"event": *"step"' log.jsonl | field loss | tail -3)
[ "$(field last_batch_loss < out.json)" = "$(echo "$steps" | tail -1)" ] ||
    fail "last_batch_loss: $(cat out.json), the steps: $steps"
[ "$(field train_loss < out.json)" = "$(grep '"event": *"epoch"' log.jsonl | field loss | tail -1)" ] ||
    fail "train_loss: $(cat out.json), the log: $(cat log.jsonl)"
echo "$steps" | awk -v mean="$(field train_loss < out.json)" \
    '{ sum += $1 } END { exit !(sum / NR - mean < 1e-6 && mean - sum / NR < 1e-6) }' ||
    fail "train_loss: $(cat out.json), the steps: $steps"
# Within an epoch: the mean of its steps so far.
"$LOCKSTEP" train $small --steps 2 --eval-every -1 --log half.jsonl --json > half.json 2> /dev/null
field loss < half.jsonl | awk -v mean="$(field train_loss < half.json)" \
    '{ sum += $1 } END { exit !(NR == 2 && sum / NR - mean < 1e-6 && mean - sum / NR < 1e-6) }' ||
    fail "train_loss of 2 steps: $(cat half.json half.jsonl)"
if command -v python3 > /dev/null; then
    python3 -c 'import json, sys; [json.loads(line) for f in sys.argv[1:] for line in open(f)]' out.json log.jsonl
fi

# eval of the saved weights gives the same results as the end of training.
"$LOCKSTEP" eval --load run $small --json > eval.json
[ "$(field loss < eval.json)" = "$loss" ] || fail "eval: $(cat eval.json), train: $(cat out.json)"
[ "$(field accuracy < eval.json)" = "$accuracy" ] || fail "eval: $(cat eval.json), train: $(cat out.json)"
"$LOCKSTEP" eval --load run/model.safetensors $small --json | cmp - eval.json
[ "$("$LOCKSTEP" predict --load run $small --first 3 --count 5 --json | wc -l)" = 5 ] || fail "predict"

# A configuration file is equivalent to options, and the command line takes precedence.
printf 'model = cnn  # the small one\ndata = synthetic:3x32x32,count=192\nepochs = 9\nthreads = 1\n' > run.conf
"$LOCKSTEP" train --config run.conf --epochs 2 --json 2> /dev/null | field hash > conf.hash
[ "$(cat conf.hash)" = "$hash" ] || fail "the configuration file changed the result"

# Stopping and resuming gives the same bits, also in the middle of an epoch.
"$LOCKSTEP" train $small --steps 2 --save half 2> /dev/null
"$LOCKSTEP" train $small --steps 4 --save half --resume auto 2> /dev/null
"$LOCKSTEP" train $small --epochs 2 --save half --resume auto --json 2> /dev/null | field hash > half.hash
[ "$(cat half.hash)" = "$hash" ] || fail "resumed: $(cat half.hash), whole: $hash"
"$LOCKSTEP" train $small --epochs 2 --resume half --save elsewhere --json 2> /dev/null | field hash > again.hash
[ "$(cat again.hash)" = "$hash" ] || fail "resumed at the end: $(cat again.hash)"
[ -e elsewhere/model.safetensors ] || fail "--resume DIR --save OTHER saved nothing"

# Threads, workers and checkpoint options never change bits.
for more in "--threads 2" "--threads 3" "--workers 0" "--workers 3" "--save other --save-every 1 --keep 1"; do
    got=$("$LOCKSTEP" train $small --epochs 2 $more --json 2> /dev/null | field hash)
    [ "$got" = "$hash" ] || fail "$more: $got, not $hash"
done
[ "$(ls -d other/step-* | wc -l)" = 1 ] || fail "--keep 1 kept $(ls other)"
cmp run/model.safetensors other/model.safetensors
[ "$("$LOCKSTEP" train $small --epochs 2 --seed 1 --json 2> /dev/null | field hash)" != "$hash" ] ||
    fail "the seed has no effect"

# A signal: the current step is finished and saved.
rm -f err.txt # of the commands before: what waits below must not see it
"$LOCKSTEP" train $small --epochs 100000 --save signalled --eval-every -1 2> err.txt &
pid=$!
wait_for_line 60 step err.txt
kill -TERM "$pid"
code=0
wait "$pid" || code=$?
[ "$code" = 143 ] || fail "SIGTERM: exit status $code: $(cat err.txt)"
"$LOCKSTEP" eval --load signalled $small > /dev/null
grep -q "^lockstep train: terminated, saved step $(field step < signalled/state.json);" err.txt ||
    fail "SIGTERM: $(cat err.txt)"
# Ctrl-C prints one message.
for more in "--save interrupted" "--save-every 100000000 --save interrupted2" ""; do
    rm -f steps.jsonl
    "$LOCKSTEP" train $small --epochs 100000 $more --log steps.jsonl --eval-every -1 2> err.txt &
    pid=$!
    wait_until 60 test -s steps.jsonl
    kill -INT "$pid"
    code=0
    wait "$pid" || code=$?
    [ "$code" = 130 ] && [ "$(grep -c '^lockstep train: interrupted' err.txt)" = 1 ] ||
        fail "SIGINT: exit status $code: $(cat err.txt)"
    if [ -z "$more" ]; then
        grep -q '^lockstep train: interrupted after step [0-9]*; nothing was saved' err.txt ||
            fail "SIGINT without --save: $(cat err.txt)"
    else
        step=$(field step < "${more##* }/state.json")
        grep -q "^lockstep train: interrupted, saved step $step;" err.txt &&
            [ "$(grep -c "saved step $step" err.txt)" = 1 ] || fail "SIGINT, step $step: $(cat err.txt)"
    fi
done

# With a weight decay of 0, AdamW is Adam.
decayed() {
    "$LOCKSTEP" train --model mlp --features 5 --steps 5 --seed 3 --eval-every -1 --json "$@" 2> /dev/null |
        tail -1 | field hash
}
[ "$(decayed --optimizer adamw --weight-decay 0)" = "$(decayed --optimizer adam)" ] || fail "--weight-decay 0 decays"
[ "$(decayed --optimizer adamw --weight-decay 0.1)" != "$(decayed --optimizer adam)" ] ||
    fail "--weight-decay 0.1 does not decay"

# The other commands.
"$LOCKSTEP" plan --model resnet18 --batch 8 | grep -q '^total' || fail "plan"
"$LOCKSTEP" plan --model cnn --graph dot | grep -q 'digraph' || fail "plan --graph dot"
"$LOCKSTEP" plan --model cnn --graph text | grep -q 'conv2.weight' || fail "plan --graph text"
"$LOCKSTEP" plan --model cnn --sections | grep -q 'conv2d+relu+max_pool' || fail "plan --sections shows no fusion"
"$LOCKSTEP" bench train --model mlp --batch 32 --threads 1 --steps 50 --json > bench.json
for key in samples_per_s steps_per_s mean_step_s first_step_s rss_mib; do [ -n "$(field $key < bench.json)" ] ||
    fail "bench: $(cat bench.json)"; done
"$LOCKSTEP" train --model mlp --hidden 7 --features 5 --classes 3 --steps 3 --dtype f64 --optimizer sgd --momentum 0.9 \
    --nesterov \
    --schedule cosine --warmup 1 --clip 1 --label-smoothing 0.1 --weight-decay 0.01 --json 2> /dev/null |
        grep -q '"parameters": *66' || fail "mlp sizes"
echo "ok"
