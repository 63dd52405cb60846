#!/usr/bin/env bash
# cli_model.sh - `--model ./mine.so`: a model from a shared object trains, resumes, is evaluated and predicts, on one
# rank and on several with the same bits, and in stages; files that are no such models, or of another version, are
# refused with a sentence. ctest: timeout 240, ranks 2
set -eu
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
build() { "$CC" -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC -I "$SOURCE_DIR/include" "$@"; }
build "$SOURCE_DIR/examples/model_so.c" -o mine.so
[ -s "$BUILD_DIR/examples/model_so.so" ] || fail "the build makes no examples/model_so.so"

run="--model ./mine.so --data synthetic:3x16x16,count=256 --batch 32 --threads 1"
train() {
    # shellcheck disable=SC2086
    "$LOCKSTEP" train $run --json "$@" 2> err.txt || fail "train $*: exit status $?: $(cat err.txt)"
}
train --steps 12 --reproducible --save one > one.json
for ranks in 2; do
    train --steps 12 --reproducible -n $ranks > many.json
    [ "$(field hash < one.json)" = "$(field hash < many.json)" ] || fail "$ranks ranks: $(cat one.json many.json)"
done
train --steps 6 --reproducible --save two > half.json
train --steps 12 --reproducible --save two --resume auto > two.json
[ "$(field hash < one.json)" = "$(field hash < two.json)" ] || fail "resumed: $(cat one.json two.json)"
# Its blocks are stages, too: where the plan cuts it, and where the user does.
train --steps 6 --dtype f64 --save whole > whole.json
for stages in "" "--stages 0,1"; do
    rm -rf staged
    # shellcheck disable=SC2086
    train --steps 6 --dtype f64 --save staged --mesh pipeline=2 --micro-batches 2 $stages > staged.json
    python3 "$SOURCE_DIR/test/cli/layouts.py" 1e-9 whole staged > far.txt 2>&1 ||
        fail "pipeline=2 $stages: $(cat far.txt)"
done
# shellcheck disable=SC2086
"$LOCKSTEP" plan $run --mesh pipeline=2 --micro-batches 2 --stages 0,1 > plan.txt 2>&1
stages='stage 0: block 0 and what precedes it; .* stage 1: block 1 and what follows it;'
tr -s ' \n' ' ' < plan.txt | grep -q "$stages" ||
    fail "stages of blocks: $(cat plan.txt)"
# One that is linked with the shared library uses the functions of the command all the same.
if [ -z "${LK_SANITIZE:-}" ]; then
    build "$SOURCE_DIR/examples/model_so.c" -o linked.so -L "$BUILD_DIR" -Wl,--no-as-needed -llockstep \
        -Wl,-rpath,"$BUILD_DIR"
    "$LOCKSTEP" train --model ./linked.so --data synthetic:3x16x16,count=256 --batch 32 --threads 1 --steps 12 \
        --reproducible --json \
        > linked.json 2> err.txt || fail "linked.so: $(cat err.txt)"
    [ "$(field hash < one.json)" = "$(field hash < linked.json)" ] || fail "linked.so: $(cat one.json linked.json)"
fi
# Without a directory the file is that in the current one.
"$LOCKSTEP" train --model mine.so --data synthetic:3x16x16,count=64 --steps 1 > /dev/null 2> err.txt ||
    fail "mine.so: $(cat err.txt)"

# same_loss FILE: its loss is that of training, which added over leaves: in another order, so the last digits may
# differ.
same_loss() {
    awk -v a="$(field loss < "$1")" -v b="$(field loss < one.json)" \
        'BEGIN { d = a - b; exit !(a > 0 && d < 1e-12 && d > -1e-12) }'
}
# shellcheck disable=SC2086
"$LOCKSTEP" eval $run --load one --json > eval.json
same_loss eval.json || fail "eval: $(cat eval.json one.json)"
# The checkpoint knows its model.
"$LOCKSTEP" eval --load one --json > alone.json 2> err.txt || fail "eval by the record: $(cat err.txt)"
same_loss alone.json || fail "eval by the record: $(cat alone.json one.json)"
# shellcheck disable=SC2086
"$LOCKSTEP" predict $run --load one --count 5 > predict.txt || fail "predict"
[ "$(wc -l < predict.txt)" -ge 5 ] || fail "predict: $(cat predict.txt)"
# shellcheck disable=SC2086
"$LOCKSTEP" plan $run --sections > plan.txt
grep -q 'block1.conv1.weight' plan.txt || fail "plan: $(cat plan.txt)"

# refused WORDS FILE: --model FILE ends with 2 and one line that contains WORDS.
refused() {
    local code=0
    "$LOCKSTEP" train --model "$2" --data synthetic:3x16x16 --steps 1 > out.txt 2> err.txt || code=$?
    [ $code = 2 ] || fail "$2: exit status $code: $(cat err.txt)"
    [ "$(wc -l < err.txt)" = 1 ] && grep -qF -- "$1" err.txt || fail "$2: no \"$1\" in: $(cat err.txt)"
}
refused 'no such file' ./none.so
refused 'no such file' none.so
refused "is not one of" nothing
echo 'this is text' > text.so
refused './text.so: cannot be loaded' ./text.so
echo 'int unrelated;' > empty.c
build empty.c -o empty.so
refused 'does not export a model: define one with LK_EXPORT_MODEL' ./empty.so
bare='LK_API lk_tensor lockstep_model(lk_tensor x, lk_model_options options) { return mine(x, options); }'
sed "s/^LK_EXPORT_MODEL.*/$bare/" \
    "$SOURCE_DIR/examples/model_so.c" > bare.c
build -Wno-missing-prototypes bare.c -o bare.so
refused 'does not export a model' ./bare.so
cp -r "$SOURCE_DIR/include" newer
sed -i 's/define LK_VERSION_MINOR .*/define LK_VERSION_MINOR 99/' newer/lockstep/base.h
"$CC" -std=gnu11 -shared -fPIC -I newer "$SOURCE_DIR/examples/model_so.c" -o newer.so
refused 'headers of Lockstep 0.99' ./newer.so
printf '%s\n' '#include <lockstep/model.h>' 'lk_tensor missing(lk_tensor x);' \
    'static lk_tensor m(lk_tensor x, lk_model_options o) { (void)o; return missing(x); }' \
    'LK_EXPORT_MODEL(m)' > undefined.c
build undefined.c -o undefined.so
refused 'undefined symbol: missing' ./undefined.so

# A file that is cut anywhere.
for bytes in 30 64 500 5000; do
    head -c $bytes mine.so > cut.so
    refused './cut.so: cannot be loaded' ./cut.so
done

# Outputs that do not fit the data.
model() {
    printf '%s\n' '#include <lockstep/model.h>' \
        "static lk_tensor m(lk_tensor x, lk_model_options o) { (void)x, (void)o; return $2; }" \
        'LK_EXPORT_MODEL(m)' > "$1.c" && build "$1.c" -o "$1.so"
}
model narrow 'lk_linear(lk_flatten(x), "fc", 3)'
text='the model returns (N, 3), but the data has 10 classes: expected (N, 10)'
refused "--model ./narrow.so --data synthetic:3x16x16: $text" ./narrow.so
model images 'lk_conv2d(x, "conv", 10, 3)'
refused 'the model returns a tensor with 4 axes; expected (N, 10), since the data has 10 classes' ./images.so
model none '(lk_tensor){0}'
refused 'the model must return a tensor' ./none.so

# Another model than that of the checkpoint: both are named.
for other in cnn ./narrow.so; do
    code=0
    "$LOCKSTEP" train --save two --resume auto --steps 20 --model $other > out.txt 2> err.txt || code=$?
    [ $code = 2 ] && grep -qF -- "--model $other, but two was written with --model ./mine.so" err.txt ||
        fail "$other over ./mine.so: $code $(cat err.txt)"
done
code=0
"$LOCKSTEP" eval --load two --model "$PWD/mine.so" > out.txt 2> err.txt || code=$?
[ $code = 0 ] && ! grep -q 'was written with' err.txt || fail "the same model by another path: $code $(cat err.txt)"

# The model's own error, with the option that it comes from.
code=0
"$LOCKSTEP" train --model ./mine.so --data synthetic:64 --steps 1 > out.txt 2> err.txt || code=$?
[ $code = 2 ] && grep -q 'takes images (N, channels, height, width), not a tensor with 2 axes' err.txt ||
    fail "flat data: $code $(cat err.txt)"

# Ranks with different models do not train together.
sed 's/"stem", 16/"stem", 8/' "$SOURCE_DIR/examples/model_so.c" > other.c
build other.c -o other.so
cat > rank.sh <<'SH'
#!/bin/sh
model=./mine.so
[ "$RANK" = 1 ] && model=./other.so
exec "$LOCKSTEP" train --model $model --data synthetic:3x16x16,count=64 --steps 1
SH
chmod +x rank.sh
! "$LOCKSTEP" run -n 2 ./rank.sh > out.txt 2>&1 || fail "ranks with different models trained together"
grep -q 'would not run the same program' out.txt || fail "different models: $(cat out.txt)"
