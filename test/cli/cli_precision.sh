#!/usr/bin/env bash
# cli_precision.sh - `--dtype bf16` trains every model; its bits do not depend on ranks with --reproducible; its
# checkpoints hold f32 master weights and say the precision, resume to the same bits, and go on in f32 and back; eval
# and predict take it; --gradient-dtype bf16 stays near f32. ctest: timeout 300, ranks 3
set -eu
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
image="--data synthetic:3x16x16,count=200 --batch 24 --threads 1 --eval-every -1 --json"

# run_train NAME OPTIONS…: its line of JSON in NAME.json
run_train() {
    local name=$1
    shift
    "$LOCKSTEP" train "$@" > "$name.json" 2> "$name.err" || fail "$name: exit status $?: $(cat "$name.err")"
    [ -n "$(field hash < "$name.json")" ] || fail "$name: $(cat "$name.json")"
}
hash_of() { field hash < "$1.json"; }

for model in mlp cnn resnet18 resnet20 "resnet20 --sync-batchnorm" "resnet20 --recompute"; do
    for ranks in 1 2; do
        # shellcheck disable=SC2086
        case $model in mlp) data="--batch 24 --threads 1 --eval-every -1 --json" ;; *) data=$image ;; esac
        # shellcheck disable=SC2086
        run_train any --model $model $data --dtype bf16 -n $ranks --steps 3
    done
done

# The same bits at any number of ranks, and others than f32's.
for ranks in 1 2 3; do
    # shellcheck disable=SC2086
    run_train r$ranks --model cnn $image --dtype bf16 --reproducible -n $ranks --steps 8
done
[ "$(hash_of r1)" = "$(hash_of r2)" ] && [ "$(hash_of r1)" = "$(hash_of r3)" ] ||
    fail "--reproducible in bf16: $(hash_of r1) $(hash_of r2) $(hash_of r3)"
# shellcheck disable=SC2086
run_train wide --model cnn $image --reproducible --steps 8
[ "$(hash_of r1)" != "$(hash_of wide)" ] || fail "bf16 rounds nothing"

# Interrupted and resumed: the same bits as without; the files hold F32 and name the precision.
# shellcheck disable=SC2086
run_train whole --model cnn $image --dtype bf16 --steps 12
# shellcheck disable=SC2086
run_train half --model cnn $image --dtype bf16 --steps 6 --save a
# shellcheck disable=SC2086
run_train rest --model cnn $image --dtype bf16 --steps 12 --save a --resume auto
[ "$(hash_of whole)" = "$(hash_of rest)" ] || fail "resumed: $(hash_of rest), at once: $(hash_of whole)"
grep -q '"dtype":"bf16"' a/state.json || fail "state.json: $(cat a/state.json)"
head -c 4096 a/model.safetensors | grep -aq '"F32"' || fail "no F32 in model.safetensors"
if head -c 4096 a/model.safetensors | grep -aq '"BF16"'; then fail "rounded weights in model.safetensors"; fi

# Under another precision, and back.
# shellcheck disable=SC2086
run_train other --model cnn $image --dtype f32 --steps 14 --save a --resume auto
grep -q 'saved by a run in bf16 and continues in f32' other.err || fail "no word of the change: $(cat other.err)"
grep -q '"dtype":"f32"' a/state.json || fail "state.json: $(cat a/state.json)"
# shellcheck disable=SC2086
run_train back --model cnn $image --dtype bf16 --steps 16 --save a --resume auto -n 2
grep -q 'saved by a run in f32 and continues in bf16' back.err || fail "no word of the change: $(cat back.err)"

"$LOCKSTEP" plan --model cnn --dtype bf16 > out || fail "plan: $(cat out)"
grep -q '^master weights' out || fail "plan does not list the master weights: $(cat out)"
for command in "eval" "predict --count 3"; do
    # shellcheck disable=SC2086
    "$LOCKSTEP" $command --model cnn --data synthetic:3x16x16,count=200 --dtype bf16 --load a > out 2>&1 ||
        fail "$command: $(cat out)"
done

# Gradients in bf16: another result, near f32's. They are not reproducible over ranks, so the two are refused together.
# shellcheck disable=SC2086
run_train g32 --model cnn $image -n 2 --steps 20
# shellcheck disable=SC2086
run_train g16 --model cnn $image -n 2 --steps 20 --gradient-dtype bf16
[ "$(hash_of g32)" != "$(hash_of g16)" ] || fail "--gradient-dtype bf16 changes nothing"
awk -v a="$(field train_loss < g32.json)" -v b="$(field train_loss < g16.json)" \
    'BEGIN { exit !(a > 0 && b > 0 && (a - b) ^ 2 < (0.05 * a) ^ 2) }' ||
    fail "losses $(cat g32.json) and $(cat g16.json)"
for wrong in "--reproducible" "--dtype f64"; do
    code=0
    # shellcheck disable=SC2086
    "$LOCKSTEP" train --model mlp -n 2 --steps 2 --gradient-dtype bf16 $wrong > out 2>&1 || code=$?
    [ $code = 2 ] && grep -q 'gradient-dtype bf16' out && grep -q -e "$wrong" out ||
        fail "$wrong: exit status $code: $(cat out)"
done
echo "bf16: every model, ranks, checkpoints, resumes in another precision, gradients"
