#!/usr/bin/env bash
# cli_tokens.sh - tokens that begin and end texts, at the command: every end token of config.json,
# generation_config.json and special_tokens_map.json ends a continuation, and saving keeps them; stop strings may spell
# special tokens; the tokenizer's template begins documents and prompts alike; a pipe gets whole characters.
# ctest: label quick
set -eu
command -v python3 > /dev/null || { echo "skipped: no python3, which reads the stored continuations"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$SOURCE_DIR/test/golden/generate/." "$work"
cd "$work"
cat > check.py << 'PYTHON'
import json, os, shutil, subprocess, sys
lockstep = sys.argv[1]
expected = [json.loads(line) for line in open("expected.txt")]

def run(*words, code=0):
    done = subprocess.run([lockstep, *words], capture_output=True)
    assert done.returncode == code, f"{words}: exit status {done.returncode}: {done.stderr.decode()}"
    return done
def generate(load, *more, prompt="To be"):
    done = run("generate", "--load", load, "--threads", "1", "--temperature", "0", "--tokens", "64", "--json",
               "--prompt", prompt, *more)
    return json.loads(done.stdout)
def copy(name, source="llama"):
    shutil.rmtree(name, ignore_errors=True)
    shutil.copytree(source, name)
    return name
def edit(path, **changes):
    old = json.load(open(path)) if os.path.exists(path) else {}
    json.dump(dict(old, **changes), open(path, "w"))

whole = next(e["ids"] for e in expected if e["model"] == "llama" and e["prompt"] == "To be")
end = next(t for i, t in enumerate(whole) if i >= 10 and whole.index(t) == i) # first met after ten others
place = whole.index(end) + 1
others = [t for t in range(1, 300) if t not in whole][:2]
tokenizer = json.load(open("llama/tokenizer.json"))
names = {i: t for t, i in tokenizer["model"]["vocab"].items()}

def check_ends(load, what):
    got = generate(load)
    assert got["end"] == "eos" and got["ids"] == whole[:place], (
        f"{what}: {got['end']} after {len(got['ids'])}, not {place}")
    assert generate(load, "--ignore-eos")["ids"] == whole, what

# ---- end tokens ----
assert generate("llama")["ids"] == whole
edit(copy("listed") + "/config.json", eos_token_id=[others[0], end])
check_ends("listed", "a list in config.json")
edit(copy("generation") + "/generation_config.json", eos_token_id=[others[0], others[1], end], temperature=0.6)
check_ends("generation", "a list in generation_config.json")
edit(copy("one") + "/generation_config.json", eos_token_id=end)
check_ends("one", "an id in generation_config.json")
edit(copy("special") + "/special_tokens_map.json", eos_token={"content": names[end], "lstrip": False})
check_ends("special", "special_tokens_map.json")
edit(copy("unnamed") + "/special_tokens_map.json", eos_token=names[end])
config = json.load(open("unnamed/tokenizer_config.json"))
del config["eos_token"]
json.dump(config, open("unnamed/tokenizer_config.json", "w"))
check_ends("unnamed", "special_tokens_map.json alone")

# ---- saving keeps them ----
open("text.txt", "w").write("To be, or not to be: that is the question. " * 50)
train = ["train", "--init", "generation", "--data", "text:text.txt", "--batch", "2", "--context", "16", "--steps", "1",
         "--lr", "0", "--eval-every", "-1", "--threads", "1"]
run(*train, "--save", "saved")
generation = open("generation/generation_config.json", "rb").read()
assert open("saved/generation_config.json", "rb").read() == generation, "generation_config.json changed"
config = open("saved/config.json").read()
assert json.loads(config)["eos_token_id"] == [others[0], others[1], end], config
check_ends("saved", "a saved directory")
run("train", "--resume", "auto", "--save", "saved", "--steps", "2", "--lr", "0", "--threads", "1")
check_ends("saved", "a resumed one")
generation = open("generation/generation_config.json", "rb").read()
assert open("saved/generation_config.json", "rb").read() == generation, "generation_config.json changed on resuming"
edit(copy("wrong") + "/generation_config.json", eos_token_id="end")
said = run("generate", "--load", "wrong", "--prompt", "x", code=2).stderr
assert b'wrong/generation_config.json: "eos_token_id" is "end": expected a token id' in said

# ---- stop strings and special tokens ----
tokenizer["added_tokens"].append(dict(id=end, content=names[end], single_word=False, lstrip=False, rstrip=False,
                                      normalized=False, special=True))
json.dump(tokenizer, open(copy("hidden") + "/tokenizer.json", "w"))
got, free = generate("hidden", "--stop", names[end]), generate("hidden")
assert free["ids"] == whole and len(free["text"]) < len(generate("llama")["text"]), "a special token has no text"
assert got["end"] == "stop" and got["ids"] == whole[:place], f"--stop with a special token: {got}"

# ---- what begins a text ----
def tokenize(text, model):
    open("one.txt", "w").write(text)
    run("data", "tokenize", "one.txt", "--tokenizer", model, "--out", "one.bin")
    raw = open("one.bin", "rb").read()[1024:]
    return [int.from_bytes(raw[i:i + 2], "little") for i in range(0, len(raw), 2)]
for model, begin in (("llama", [0]), ("gpt", [])):
    got = generate(model, "--tokens", "1")["prompt_ids"]
    assert got == begin + [270, 268], f"{model}: {got}"
    assert tokenize("To be", model) == begin + [270, 268, 0], f"{model}: {tokenize('To be', model)}"
got = generate("llama", "--tokens", "1", prompt="<|endoftext|>To be")["prompt_ids"]
assert got == [0, 270, 268], "the token that begins a text, twice"
assert tokenize("<|endoftext|>To be", "llama") == [0, 270, 268, 0]

# ---- documents are evaluated as transformers has them: what begins one is not predicted, its first token is ----
os.mkdir("texts")
texts = ["To be or not to be, that is the question.", "The quick brown fox jumps over the lazy dog. Zürich!"]
for i, text in enumerate(texts): open(f"texts/{i}.txt", "w").write(text)
open("texts.jsonl", "w").write("".join(json.dumps({"text": t}) + "\n" for t in texts))
def evaluate(data, *more):
    return json.loads(run("eval", "--load", "llama", "--threads", "1", "--data", data, "--json", *more).stdout)
alone = [evaluate(f"text:texts/{i}.txt") for i in range(2)]
stored = [8.005096, 7.760271] # of transformers 5.22: model(ids, labels=ids).loss
for one, loss in zip(alone, stored): assert abs(one["loss"] - loss) < 1e-5, (one, loss)
mean = sum(o["loss"] * o["tokens"] for o in alone) / sum(o["tokens"] for o in alone)
run("data", "tokenize", "texts", "--tokenizer", "llama", "--out", "texts.bin")
for data, more in (("text:texts", ()), ("jsonl:texts.jsonl", ()), ("tokens:texts.bin", ("--packing", "documents"))):
    got = evaluate(data, *more)
    assert abs(got["loss"] - mean) < 1e-5 and got["tokens"] == sum(o["tokens"] for o in alone), (data, got, mean)

# ---- what is printed ----
done = run("generate", "--load", "gpt", "--threads", "1", "--temperature", "0", "--tokens", "64", "--ignore-eos",
           "--prompt", "To be")
text = next(e["text"] for e in expected if e["model"] == "gpt" and e["prompt"] == "To be")
assert done.stdout.decode() == "To be" + text + "\n", f"a pipe gets {done.stdout}"
assert b"prompt: 2 tokens" in done.stderr, done.stderr
assert b"prompt: 3 tokens" in run("generate", "--load", "llama", "--prompt", "To be", "--tokens", "2").stderr
assert b"prompt: 1 token; " in run("generate", "--load", "llama", "--prompt-ids", "5", "--tokens", "2").stderr
ids = ",".join(str(tokenizer["model"]["vocab"][c]) for c in "âĤ")
euro = run("generate", "--load", "gpt", "--prompt-ids", ids, "--tokens", "3", "--temperature", "0").stdout
euro.decode() # within a character, which the continuation does not complete
PYTHON
python3 check.py "$LOCKSTEP"
