#!/usr/bin/env bash
# cli_matmul_precision.sh - `--matmul-precision bf16` trains models of f32 near to what they learn without, gives other
# bits, the same ones on any number of ranks and on every mesh where that is asked for, and is taken from a checkpoint's
# record by a resume; eval, predict, plan and bench take it; f64 and ranks that disagree are refused.
# ctest: timeout 300, ranks 4
set -eu
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
gpt="--model gpt --data synthetic-tokens --layers 2 --width 64 --heads 4 --context 64 --batch 8 --threads 1
    --eval-every -1 --json"
mixtral="${gpt/--model gpt/--model mixtral} --experts 4"
mlp="--model mlp --batch 24 --threads 1 --eval-every -1 --json"

# run_train NAME OPTIONS…: its line of JSON in NAME.json
run_train() {
    local name=$1
    shift
    "$LOCKSTEP" train "$@" > "$name.json" 2> "$name.err" || fail "$name: exit status $?: $(cat "$name.err")"
    [ -n "$(field hash < "$name.json")" ] || fail "$name: $(cat "$name.json")"
}
hash_of() { field hash < "$1.json"; }
# near A B: their losses differ by at most 1 %
near() {
    awk -v a="$(field train_loss < "$1.json")" -v b="$(field train_loss < "$2.json")" \
        'BEGIN { exit !(a > 0 && b > 0 && (a - b) ^ 2 < (0.01 * a) ^ 2) }' ||
        fail "losses $(cat "$1.json") and $(cat "$2.json")"
}

for task in "$gpt" "$mlp" "$mixtral" "$gpt --recompute"; do
    # shellcheck disable=SC2086
    run_train high $task --steps 20
    # shellcheck disable=SC2086
    run_train low $task --steps 20 --matmul-precision bf16
    [ "$(hash_of high)" != "$(hash_of low)" ] || fail "--matmul-precision bf16 rounds nothing: $task"
    near high low
    # shellcheck disable=SC2086
    run_train same $task --steps 20 --matmul-precision highest
    [ "$(hash_of high)" = "$(hash_of same)" ] || fail "--matmul-precision highest is not the default: $task"
done

# The same bits on any number of ranks, and on every mesh.
for ranks in 1 2 3; do
    # shellcheck disable=SC2086
    run_train r$ranks $gpt --matmul-precision bf16 --reproducible -n $ranks --steps 5
done
[ "$(hash_of r1)" = "$(hash_of r2)" ] && [ "$(hash_of r1)" = "$(hash_of r3)" ] ||
    fail "--reproducible: $(hash_of r1) $(hash_of r2) $(hash_of r3)"
layout="--matmul-precision bf16 --reproducible layout --sum-part-minimum 16 --steps 4"
# shellcheck disable=SC2086
run_train alone $gpt $layout
for mesh in tensor=2 data=2 shard=2 pipeline=2 data=2,tensor=2; do
    # shellcheck disable=SC2086
    run_train meshed $gpt $layout --mesh $mesh
    [ "$(hash_of alone)" = "$(hash_of meshed)" ] || fail "$mesh: $(hash_of meshed), one rank: $(hash_of alone)"
done

# shellcheck disable=SC2086
run_train alone $mixtral $layout
# shellcheck disable=SC2086
run_train meshed $mixtral $layout --mesh expert=2
[ "$(hash_of alone)" = "$(hash_of meshed)" ] || fail "expert=2: $(hash_of meshed), one rank: $(hash_of alone)"
# shellcheck disable=SC2086
run_train plain $gpt --matmul-precision bf16 --accumulate 4 --steps 4
# shellcheck disable=SC2086
run_train piped $gpt --matmul-precision bf16 --mesh pipeline=2 --pipeline-schedule zero-bubble --accumulate 4 --steps 4
near plain piped

# A resume takes it from the record: the same bits as without a pause.
# shellcheck disable=SC2086
run_train whole $gpt --matmul-precision bf16 --steps 8
# shellcheck disable=SC2086
run_train half $gpt --matmul-precision bf16 --steps 4 --save a
grep -q '"matmul-precision":"bf16"' a/state.json || fail "state.json: $(cat a/state.json)"
# shellcheck disable=SC2086
run_train rest $gpt --steps 8 --save a --resume auto
[ "$(hash_of whole)" = "$(hash_of rest)" ] || fail "resumed: $(hash_of rest), at once: $(hash_of whole)"
"$LOCKSTEP" eval --load a --matmul-precision bf16 --json > low.json 2> err || fail "eval: $(cat err)"
"$LOCKSTEP" eval --load a --matmul-precision highest --json > high.json 2> err || fail "eval: $(cat err)"
[ "$(field loss < low.json)" != "$(field loss < high.json)" ] || fail "eval rounds nothing: $(cat low.json high.json)"

# shellcheck disable=SC2086
run_train classes $mlp --matmul-precision bf16 --steps 4 --save b
"$LOCKSTEP" predict --load b --matmul-precision bf16 --count 3 > out 2>&1 || fail "predict: $(cat out)"
"$LOCKSTEP" plan --model mlp --matmul-precision bf16 --sections > out 2>&1 || fail "plan: $(cat out)"
grep -q 'cast(fc1.weight)  bf16' out || fail "the plan does not round a weight: $(cat out)"
"$LOCKSTEP" bench train --model mlp --matmul-precision bf16 --steps 2 > out 2>&1 || fail "bench: $(cat out)"

code=0
"$LOCKSTEP" train --model mlp --steps 2 --dtype f64 --matmul-precision bf16 > out 2>&1 || code=$?
[ $code = 2 ] && grep -q 'matmul-precision bf16 does not apply to --dtype f64' out || fail "f64: $code: $(cat out)"

# Ranks that disagree do not start.
export LOCKSTEP
cat > each.sh <<'EOF'
precision=highest
[ "$RANK" = 1 ] && precision=bf16
exec "$LOCKSTEP" train --model mlp --steps 2 --batch 24 --threads 1 --matmul-precision $precision
EOF
code=0
"$LOCKSTEP" run -n 2 bash each.sh > out 2>&1 || code=$?
[ $code != 0 ] && grep -q 'matmul precision highest' out && grep -q 'matmul precision bf16' out ||
    fail "ranks that disagree: $code: $(cat out)"
echo "matmul precision: models, ranks, meshes, resumes, commands, refusals"
