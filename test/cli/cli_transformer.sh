#!/usr/bin/env bash
# cli_transformer.sh - transformers at the command: what training shows and saves, what a memory budget recomputes, and
# what is refused.
# ctest: timeout 240
set -eu
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
# refuse PATTERN ARGS: exit code 2 and one sentence that matches.
refuse() {
    local pattern=$1 code=0
    shift
    "$LOCKSTEP" "$@" > out.txt 2> err.txt || code=$?
    [ $code = 2 ] && grep -qE -- "$pattern" err.txt || fail "lockstep $*: status $code, not '$pattern': $(cat err.txt)"
}

small="--layers 2 --heads 2 --width 32 --context 16"
cat "$SOURCE_DIR"/README.md > text.txt

# Every number of a language model is in the log, and what is saved opens by itself.
"$LOCKSTEP" train --model gpt $small --data text:text.txt --tokenizer char --steps 12 --batch 4 --eval-every 6 --log \
    log.jsonl --save run --json > train.json 2> err.txt || fail "train: $(cat err.txt)"
for name in perplexity bits_per_byte tokens_per_s tokens mfu; do
    grep '"event": *"step"' log.jsonl | grep -q "\"$name\"" || fail "no $name in the log: $(tail -1 log.jsonl)"
done
grep -oE '"mfu": *[0-9.e+-]+' log.jsonl |
    awk -F: '{ n++; if (!($2 > 0 && $2 <= 1)) bad = 1 } END { exit bad || n < 5 }' ||
    fail "mfu is not within 0 and 1: $(grep -o '"mfu".*' log.jsonl)"
# The progress line has whole metrics, and its rate once.
pattern='^train  step 12/12  loss [0-9.]+  [0-9.]+ tokens/s  left 0:00  accuracy [0-9.]+ %  perplexity [0-9.]+  '
pattern+='bits_per_byte [0-9.]+  mfu [0-9.e-]+$'
grep -qE "$pattern" err.txt || fail "the progress line: $(grep '^train  step' err.txt)"
grep '"event": *"evaluated"' log.jsonl | grep -q '"perplexity"' || fail "no perplexity of the evaluation"
grep -q '"tokens_per_s"' train.json || fail "no tokens_per_s: $(cat train.json)"
tokens=$(grep '"event": *"step"' log.jsonl | tail -1 | grep -oE '"tokens": *[0-9]+' | grep -oE '[0-9]+')
[ "$tokens" = $((12 * 4 * 16)) ] || fail "$tokens tokens seen, not $((12 * 4 * 16))"
rm -rf more && cp -R run more
"$LOCKSTEP" train --save more --resume auto --steps 14 --log resumed.jsonl > out.txt 2> err.txt ||
    fail "resume: $(cat err.txt)"
tokens=$(grep '"event": *"step"' resumed.jsonl | tail -1 | grep -oE '"tokens": *[0-9]+' | grep -oE '[0-9]+')
[ "$tokens" = $((14 * 4 * 16)) ] || fail "$tokens tokens seen after a resume, not $((14 * 4 * 16))"
for file in config.json generation_config.json tokenizer.json tokenizer_config.json model.safetensors; do [ -s \
    run/$file ] || fail "run/$file is missing"; done
"$LOCKSTEP" eval --load run > eval.txt 2> err.txt || fail "eval: $(cat err.txt)"
"$LOCKSTEP" train --model run/config.json --data text:text.txt --tokenizer run --init run --context 16 --steps 2 \
    --batch 4 --save again > out.txt 2> err.txt || fail "from config.json: $(cat err.txt)"
# The tokenizer beside the weights is used, and saved. A checkpoint has its own configuration: the file that it came
# from may be gone.
mkdir source && cp -L run/*.json run/model.safetensors source && rm source/state.json
"$LOCKSTEP" data tokenize text.txt --tokenizer source --out text.bin > out.txt 2> err.txt ||
    fail "tokenize: $(cat err.txt)"
for data in tokens:text.bin text:text.txt; do
    rm -rf tuned
    "$LOCKSTEP" train --model source/config.json --data $data --init source --context 16 --steps 2 --batch 4 --holdout \
        0.1 --save tuned > out.txt 2> err.txt || fail "$data with --init: $(cat err.txt)"
    cmp -s tuned/tokenizer.json source/tokenizer.json &&
        cmp -s tuned/tokenizer_config.json source/tokenizer_config.json ||
        fail "$data with --init: the tokenizer was not saved"
done
rm -rf damaged && cp -R tuned damaged && echo '{' > damaged/step-00000002/config.json
"$LOCKSTEP" train --save damaged --resume auto --steps 3 > out.txt 2> err.txt ||
    fail "resume with a damaged config.json: $(cat err.txt)"
mv source gone
"$LOCKSTEP" eval --load tuned > eval.txt 2> err.txt ||
    fail "eval without the config.json that --model named: $(cat err.txt)"
"$LOCKSTEP" train --save tuned --resume auto --steps 3 > out.txt 2> err.txt ||
    fail "resume without the config.json that --model named: $(cat err.txt)"
"$LOCKSTEP" train --save tuned --resume auto --steps 4 -n 2 > out.txt 2> err.txt ||
    fail "resume by 2 ranks without the config.json that --model named: $(cat err.txt)"
refuse '--model: source/config.json: cannot open' eval --load tuned --model source/config.json
echo '{"model": {"type": "Unigram"}}' > gone/tokenizer.json # tokens need none, a text does
"$LOCKSTEP" train --model gone/config.json --data tokens:text.bin --init gone --context 16 --steps 2 --batch 4 > \
    out.txt 2> err.txt || fail "tokens with weights of another tokenizer: $(cat err.txt)"
grep -q 'the tokenizer of gone is neither used nor saved: .*Unigram' err.txt ||
    fail "no note about a tokenizer that is not supported: $(cat err.txt)"
"$LOCKSTEP" train --model gone/config.json --data tokens:text.bin --init gone --context 16 --steps 2 --batch 4 -n 2 > \
    out.txt 2> err.txt || fail "tokens with weights of another tokenizer: $(cat err.txt)"
[ "$(grep -c 'neither used nor saved' err.txt)" = 1 ] ||
    fail "ranks repeat the note about the tokenizer: $(cat err.txt)"
"$LOCKSTEP" eval --load gone --model gone/config.json --data tokens:text.bin --holdout 0.1 --context 16 > eval.txt 2> \
    err.txt || fail "eval of tokens with another tokenizer: $(cat err.txt)"
refuse 'gone/tokenizer.json: .*Unigram' train --model gone/config.json --data text:text.txt --init gone --context 16 \
    --steps 2
"$LOCKSTEP" generate --load again --prompt "the" --tokens 8 > out.txt 2> err.txt || fail "generate: $(cat err.txt)"
refuse '^lockstep predict: --model gpt is a language model' predict --load run
refuse '^lockstep predict: --model gpt is a language model' predict --load run/model.safetensors --model gpt $small \
    --data text:text.txt --tokenizer byte

# predict prints the classes of an encoder: those that eval counts, with their names.
awk 'length > 20 { gsub(/[^a-z ]/, ""); n++; printf "{\"text\": \"%s %s\", \"label\": \"%s\"}\n",
    n % 3 ? "aaaa" : "zz", $0, n % 3 ? "most" : "few" }' text.txt | head -60 > classes.jsonl
"$LOCKSTEP" train --model encoder $small --data jsonl:classes.jsonl --label label --tokenizer byte --steps 40 --batch \
    8 --lr 0.01 --save kinds > out.txt 2> err.txt || fail "encoder: $(cat err.txt)"
"$LOCKSTEP" eval --load kinds --json > eval.txt 2> err.txt || fail "eval of an encoder: $(cat err.txt)"
"$LOCKSTEP" predict --load kinds --count 1000 --csv > predicted.csv 2> err.txt ||
    fail "predict of an encoder: $(cat err.txt)"
accuracy=$(grep -oE '"accuracy": *[0-9.]+' eval.txt | grep -oE '[0-9.]+$')
awk -F, -v accuracy="$accuracy" '
    NR > 1 { n++; right += $2 == $3; named += $4 == ($3 == 0 ? "few" : "most") }
    END { d = right / n - accuracy; exit !(n > 0 && named == n && d < 1e-5 && d > -1e-5) }' predicted.csv ||
    fail "an accuracy of '$accuracy', and the predictions $(cat predicted.csv)"

# As few blocks as fit: the plan is below the budget, and one block fewer is above it.
total() { "$LOCKSTEP" plan --model gpt --layers 6 --heads 2 --width 64 --context 64 --batch 16 --json "$@" 2> err.txt; }
field() { grep -oE "\"$1\": *[0-9]+" | grep -oE '[0-9]+$'; }
none=$(total | field total) all=$(total --recompute | field total)
[ "$all" -lt "$none" ] || fail "recomputing needs $all bytes, not less than $none"
budget=$(((none + all) / 2))
total --memory $budget > plan.json || fail "plan: $(cat err.txt)"
blocks=$(field recomputed_blocks < plan.json)
[ "$blocks" -gt 0 ] && [ "$blocks" -lt 6 ] && [ "$(field total < plan.json)" -le $budget ] ||
    fail "a budget of $budget: $(cat plan.json)"
[ "$(total --recompute-blocks $((blocks - 1)) | field total)" -gt $budget ] ||
    fail "$((blocks - 1)) blocks would have been enough for $budget"
# Recomputing the last block saves nothing: what fits without it is not refused.
least=$(total --recompute-blocks 5 | field total)
[ "$least" -lt "$all" ] || fail "the last block saves memory: $all bytes with it, $least without"
total --memory "$least" > plan.json || fail "a budget of $least: $(cat err.txt)"
[ "$(field recomputed_blocks < plan.json)" = 5 ] && [ "$(field total < plan.json)" = "$least" ] ||
    fail "a budget of $least: $(cat plan.json)"
refuse 'MiB is needed' plan --model gpt --layers 6 --heads 2 --width 64 --context 64 --batch 16 --memory \
    $((least - 1))
refuse '--recompute-blocks 7: gpt has only 6 blocks' plan --model gpt --recompute-blocks 7
refuse 'even with blocks recomputed, at least [0-9.]* MiB is needed' plan --model gpt --memory 1MiB
refuse "--memory 'much': expected a number" plan --model gpt --memory much
refuse 'remove --recompute' plan --model gpt --memory 1GiB --recompute
refuse '--memory applies only to transformers' plan --model cnn --memory 1GiB

# --download is for the public data sets alone: a transformer's own data is not replaced by one of them.
for data in "" "--data text:text.txt --tokenizer char"; do
    refuse 'only cifar10, fashion-mnist and mnist can be downloaded, not --data' train --model gpt $small $data \
        --steps 1 --batch 4 --eval-every -1 --download http://127.0.0.1:9
done

# Mistakes.
refuse '5 heads do not divide the width 32' plan --model gpt --heads 5 --width 32
refuse '--kv-heads applies only to --model llama' plan --model gpt --kv-heads 2
refuse '--layers does not apply to --model gpt2, whose configuration is fixed' plan --model gpt2 --layers 3
refuse '--context 2048: gpt2 has only 1024 positions' plan --model gpt2 --context 2048
refuse '--layers applies only to transformers' plan --model cnn --layers 3
refuse 'needs text' plan --model gpt --data synthetic:3x32x32
refuse 'the data has a vocabulary of [0-9]+ tokens, but gpt has one of 3' plan --model gpt $small --data text:text.txt \
    --tokenizer char --vocabulary 3
refuse 'predicts a class for each text' plan --model encoder $small --data text:text.txt --tokenizer char
refuse '--loss mse: gpt can be trained only with cross_entropy' plan --model gpt --loss mse
refuse '--stem applies only to --model resnet18; gpt does not use it' plan --model gpt --stem cifar
# Label smoothing is not ignored: the first loss is another one.
for smoothing in 0 0.3; do
    "$LOCKSTEP" train --model gpt $small --data text:text.txt --tokenizer char --steps 1 --batch 4 --eval-every -1 \
        --label-smoothing $smoothing --json 2> err.txt > smooth-$smoothing.json || fail "smoothing: $(cat err.txt)"
done
loss() { grep -oE '"last_batch_loss": *[0-9.]+' "$1"; }
[ "$(loss smooth-0.json)" != "$(loss smooth-0.3.json)" ] ||
    fail "--label-smoothing changes nothing: $(cat smooth-0.json)"
refuse "'gtp' is not one of mlp|cnn" train --model gtp
