#!/usr/bin/env bash
# cli_generate.sh - `lockstep generate` on directories that Hugging Face's transformers wrote
# (test/golden/make_generate.py): its greedy tokens and text, alone and together; sampling by seed, stop strings,
# streams, ids without a tokenizer, each mistake.
# ctest: label quick
set -eu
command -v python3 > /dev/null || { echo "skipped: no python3, which reads the stored continuations"; exit 77; }
# shellcheck source=test/frame.bash
. "$SOURCE_DIR/test/frame.bash"
cp -r "$SOURCE_DIR/test/golden/generate/." "$work"
generate=("$LOCKSTEP" generate --threads 2)
greedy=("${generate[@]}" --temperature 0 --tokens 64 --ignore-eos)

# transformers' own ids and text, each prompt alone and all together, by text and by ids.
cat > compare.py << 'PYTHON'
import json, subprocess, sys
greedy = sys.argv[1:]
expected = [json.loads(line) for line in open("expected.txt")]
def run(*more):
    done = subprocess.run([*greedy, "--json", *more], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
for model in ("gpt", "llama"):
    own = [e for e in expected if e["model"] == model]
    together = run("--load", model, *(x for e in own for x in ("--prompt", e["prompt"])))
    by_ids = run("--load", model, *(x for e in own for x in ("--prompt-ids", ",".join(map(str, e["prompt_ids"])))))
    assert len(together) == len(own) == 4 and by_ids == together, "ids and texts as prompts"
    for e, t in zip(own, together):
        alone = run("--load", model, "--prompt", e["prompt"])
        assert alone == [t], f"{model}: {e['prompt']} alone and with others"
        assert t["prompt"] == e["prompt"] and t["prompt_ids"] == e["prompt_ids"], t
        assert t["ids"] == e["ids"] and t["end"] == "tokens", f"{model} {e['prompt']}: {t['ids']}, not {e['ids']}"
        assert t["text"] == e["text"], f"{model} {e['prompt']}: {t['text']!r}, not {e['text']!r}"
PYTHON
python3 compare.py "${greedy[@]}" || fail "not the continuation of transformers"

# f64 and the guarded device give the same tokens; ids need no tokenizer; a line for each prompt.
"${greedy[@]}" --load llama --prompt "To be" --ids > ids.txt 2> err.txt
[ "$(wc -w < ids.txt)" = 64 ] || fail "64 ids: $(cat ids.txt)"
pattern='^lockstep generate: prompt: 3 tokens, [0-9.]+ tokens/s; '
pattern+='64 new tokens, [0-9.]+ tokens/s, weights read at [0-9.]+ GB/s$'
grep -Eq "$pattern" err.txt || fail "$(cat err.txt)"
"${greedy[@]}" --load llama --prompt "To be" --ids --dtype f64 2> /dev/null | cmp - ids.txt ||
    fail "f64 gives other tokens"
"${greedy[@]}" --load llama --prompt "To be" --ids --device guarded 2> /dev/null | cmp - ids.txt ||
    fail "the guarded device gives other tokens"
expect_text 0 "" "${greedy[@]}" --load llama --prompt "To be" --ids --dtype bf16
[ "$(wc -w < out.txt)" = 64 ] || fail "bf16: $(cat out.txt)"
mkdir bare && cp llama/config.json llama/model.safetensors bare
"${greedy[@]}" --load bare --prompt-ids 0,270,268 --ids 2> /dev/null | cmp - ids.txt || fail "ids without a tokenizer"
expect_text 0 "" "${greedy[@]}" --load bare --prompt-ids 0,270,268 --prompt-ids 1,2,3 --ids
[ "$(head -1 out.txt)" = "$(cat ids.txt)" ] && [ "$(wc -l < out.txt)" = 2 ] || fail "two lines of ids: $(cat out.txt)"
expect_text 0 "of the memory bandwidth of" "${greedy[@]}" --load bare --prompt-ids 5 --ids --timing

# Sampling: the seed decides; the number of threads and other prompts do not.
sample=(--load gpt --tokens 40 --temperature 0.9 --top-k 50 --top-p 0.95 --json)
"${generate[@]}" "${sample[@]}" --prompt "To be" --seed 1 > one.txt 2> /dev/null
"$LOCKSTEP" generate --threads 1 "${sample[@]}" --prompt "To be" --seed 1 2> /dev/null | cmp - one.txt ||
    fail "threads change the text"
"${generate[@]}" "${sample[@]}" --prompt Grüße --prompt "To be" --seed 1 2> /dev/null | tail -1 | cmp - one.txt ||
    fail "another prompt changes the text"
"${generate[@]}" "${sample[@]}" --prompt "To be" --seed 2 2> /dev/null | cmp -s - one.txt &&
    fail "another seed gives the same text"

# Text: the prompt, then what follows it; a file and standard input as prompts; stop strings end it.
"${greedy[@]}" --load gpt --prompt "To be" > text.txt 2> /dev/null
[ "$(head -c 5 text.txt)" = "To be" ] && [ "$(tail -c 1 text.txt | od -An -tx1)" = " 0a" ] || fail "$(cat text.txt)"
printf 'To be' > prompt.txt
"${greedy[@]}" --load gpt --prompt-file prompt.txt 2> /dev/null | cmp - text.txt || fail "--prompt-file"
"${greedy[@]}" --load gpt --prompt-file - < prompt.txt 2> /dev/null | cmp - text.txt || fail "--prompt-file -"
python3 - "${greedy[@]}" --load gpt --prompt "To be" --json << 'PYTHON' || fail "--stop"
import json, subprocess, sys
run = lambda *more: json.loads(subprocess.run([*sys.argv[1:], *more], check=True, capture_output=True).stdout)
whole = run()
pairs = [whole["text"][i:i + 2] for i in range(10, 60)]
stop = next(pair for pair in pairs if pair.isascii() and pair.isprintable())
cut = run("--stop", "nowhere", "--stop", stop)
assert cut["end"] == "stop" and len(cut["ids"]) < 64, (stop, cut)
assert cut["text"] == whole["text"][:whole["text"].index(stop)], (stop, cut)
PYTHON
expect_text 0 "tokens fill the model's context, so the text ends here" "${generate[@]}" --load gpt --prompt "To be" \
    --tokens 1000 --ignore-eos
expect_text 0 "200 new tokens" "${generate[@]}" --load gpt --prompt "To be" --tokens 200 --ignore-eos --slide --ids
[ "$(wc -w < out.txt)" = 200 ] || fail "--slide: $(cat out.txt)"
expect_text 0 "" "${generate[@]}" --load gpt --tokens 5 --json # without a prompt: from the first token
grep -q '"prompt_ids": \[0\]' out.txt || fail "$(cat out.txt)"

# Mistakes.
expect_text 2 "--load is missing" "${generate[@]}" --prompt x
expect_text 2 "are mutually exclusive" "${generate[@]}" --load gpt --prompt x --prompt-ids 1
expect_text 2 "are mutually exclusive" "${generate[@]}" --load gpt --prompt x --prompt-file prompt.txt
expect_text 2 "--prompt-file none.txt: No such file" "${generate[@]}" --load gpt --prompt-file none.txt
: > empty.txt
expect_text 2 "the file is empty" "${generate[@]}" --load gpt --prompt-file empty.txt
expect_text 2 "not a comma-separated list of token ids" "${generate[@]}" --load gpt --prompt-ids 1,x
expect_text 2 "not a comma-separated list of token ids" "${generate[@]}" --load gpt --prompt-ids 1,-2
expect_text 2 "token 1 of prompt 0 is 300, but the vocabulary has 300 tokens, 0 to 299" "${generate[@]}" --load bare \
    --prompt-ids 1,300 --ids
expect_text 2 "there is no tokenizer.json" "${generate[@]}" --load bare --prompt "To be"
expect_text 2 "there is no tokenizer.json" "${generate[@]}" --load bare --prompt-ids 1
expect_text 2 "there is no tokenizer.json" "${generate[@]}" --load bare --prompt-ids 1 --ids --stop x
expect_text 2 "prompt 0 has 97 tokens, but the model's context is 96: shorten it" "${generate[@]}" --load gpt \
    --prompt-ids "$(seq -s, 1 97)"
for file in config.json model.safetensors; do expect_text 2 "--load gpt/$file is a file: give the directory" \
    "${generate[@]}" --load gpt/$file --prompt x; done
expect_text 2 "omit --ids" "${generate[@]}" --load gpt --prompt x --ids --json
expect_text 2 "--top-p: 1.5 is out of range" "${generate[@]}" --load gpt --prompt x --top-p 1.5
expect_text 2 "--top-p 0 leaves no token" "${generate[@]}" --load gpt --prompt x --top-p 0
expect_text 2 "--temperature: -1 is out of range" "${generate[@]}" --load gpt --prompt x --temperature -1
expect_text 2 "--load: nowhere" "${generate[@]}" --load nowhere --prompt x
expect_text 2 "--device" "${generate[@]}" --load gpt --prompt x --device abacus
mkdir wrong && cp gpt/* wrong && sed -i 's/"n_embd": 32/"n_embd": 48/' wrong/config.json
expect_text 2 "a different model" "${generate[@]}" --load wrong --prompt x
mkdir broken && cp gpt/* broken && echo '{}' > broken/tokenizer.json
expect_text 2 "tokenizer.json" "${generate[@]}" --load broken --prompt x

# The benchmark; on a terminal, control characters are escaped.
expect_text 0 "" "$LOCKSTEP" bench generate --model llama --layers 2 --heads 4 --kv-heads 2 --width 64 --vocabulary \
    500 --threads 2 --batch 3 --tokens 8 --json
python3 -c 'import json; b = json.load(open("out.txt"))
assert b["tokens_per_s"] > 0 and b["memory_bytes_per_s"] > 0 and b["batch"] == 3' || fail "$(cat out.txt)"
expect_text 2 "does not generate text" "$LOCKSTEP" bench generate --model cnn
expect_text 2 "--epochs" "$LOCKSTEP" bench generate --model gpt2 --epochs 3
expect_text 2 "--ranks applies only to \`lockstep bench train\`" "$LOCKSTEP" bench generate --model gpt2 --ranks 2
expect_text 2 "--tokens applies only to \`lockstep bench generate\`" "$LOCKSTEP" bench train --tokens 3
expect_text 2 "exceeds the context of gpt2, 1024" "$LOCKSTEP" bench generate --model gpt2 --tokens 1000
if command -v script > /dev/null; then
    command="$LOCKSTEP generate --load gpt --prompt-ids 270,268 --tokens 64 --temperature 0 --ignore-eos --threads 1"
    script -qec "$command" /dev/null > terminal.txt < /dev/null
    grep -q '\\x' terminal.txt && ! grep -q "$(printf '\033')" terminal.txt ||
        fail "a terminal gets control characters: $(od -c terminal.txt)"
    # Characters of several bytes stay whole, also where a long text is written in parts.
    euros=$(printf '€%.0s' $(seq 800))
    for _ in 1 2 3; do printf '%s\n' "$euros"; done > euros.txt
    "$LOCKSTEP" train --model gpt --layers 1 --heads 1 --width 8 --context 2600 --data text:euros.txt --tokenizer byte \
        --batch 1 --steps 1 --eval-every -1 --save long > /dev/null 2> err.txt || fail "$(cat err.txt)"
    command="$LOCKSTEP generate --load long --prompt \"x\$(tr -d '\n' < euros.txt | head -c 2400)\""
    command="$command --tokens 1 --temperature 0 --threads 1"
    script -qec "$command" /dev/null > terminal.txt < /dev/null
    whole=$(grep -o '€' terminal.txt | wc -l)
    [ "$whole" = 800 ] ||
        fail "a terminal gets $whole whole characters of 800: $(grep -o '.........\\x...' terminal.txt | head -2)"
fi
