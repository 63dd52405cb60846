#!/usr/bin/env python3
"""Vocabularies that Hugging Face's `tokenizers` trained, and what it makes of text, for test/data/test_tokenizer_golden.c.

    pip install tokenizers==0.23.3 && python3 make_tokenizers.py TINYSHAKESPEARE

writes tokenizers/*.json and tokenizers/results.txt. Each line of that is a name, the number of groups of strings, and a hash for each group: of the
bytes of every word (splits), or of every id. The strings are drawn by the same formula in C.
"""
import json
import os
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizers")
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
STRINGS, GROUP = 10000, 20
MASK = (1 << 64) - 1

# ---- strings, as in test/data/test_tokenizer_golden.c ----

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
PIECES = ["'s", "'T", "'re", "'VE", "'m", "'lL", "'d", "'\u017f", "'x", "'r", "<|endoftext|>", "<|end|>", " <sep> ", "<sep>", "<|end", "<|end|>  ", "\u212b\u212b",
          "\u00c5\u00c5", "the", " and", "ing"]
SPACES = "\t\n\v\f\r \n\n\r\n\u0085\u00a0\u1680\u2000\u2005\u200a\u2028\u2029\u202f\u205f\u3000\u200b\u180e\ufeff"
BLOCKS = [(0xC0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x22FF), (0x3040, 0x30FF),
          (0x4E00, 0x4EFF), (0xAC00, 0xACFF), (0xF900, 0xFAFF), (0x1D100, 0x1D1FF), (0x1F300, 0x1F6FF), (0x0, 0xD7FF), (0xE000, 0x10FFFF)]


class Numbers:
    def __init__(self, seed):
        self.state = seed * 0xD1342543DE82EF95 & MASK

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return (z ^ z >> 31) % n


def string(seed):
    numbers, text = Numbers(seed), ""
    for _ in range(numbers.below(24)):
        kind = numbers.below(16)
        if kind < 4:
            text += LETTERS[numbers.below(len(LETTERS))]
        elif kind < 5:
            text += "0123456789"[numbers.below(10)]
        elif kind < 7:
            text += " "
        elif kind < 8:
            text += PUNCTUATION[numbers.below(len(PUNCTUATION))]
        elif kind < 10:
            text += PIECES[numbers.below(len(PIECES))]
        elif kind < 11:
            text += SPACES[numbers.below(len(SPACES))]
        else:
            first, last = BLOCKS[numbers.below(len(BLOCKS))]
            text += chr(first + numbers.below(last - first + 1))
    return text


def hashes(values):
    """FNV-1a of 32-bit numbers, folded to 32 bits, for each group of lists."""
    result = []
    for first in range(0, len(values), GROUP):
        h = 0xCBF29CE484222325
        for numbers in values[first:first + GROUP]:
            for n in [len(numbers), *numbers]:
                for shift in (0, 8, 16, 24):
                    h = (h ^ (n >> shift & 255)) * 0x100000001B3 & MASK
        result.append("%08x" % ((h ^ h >> 32) & 0xFFFFFFFF))
    return result


# ---- vocabularies ----

def split_then_bytes(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def digits_then_bytes():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])


def train(name, size, pre_tokenizer, normalizer, special, texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=special, show_progress=False))
    return tokenizer


def save(name, tokenizer, change):
    """As compact JSON, after a change to it."""
    tree = json.loads(tokenizer.to_str())
    change(tree)
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    with open(f"{HERE}/{name}.json", "w", encoding="utf-8") as file:
        file.write(text)
    return Tokenizer.from_str(text)


def old_merges(tree):
    """As files of GPT-2's time have them."""
    tree["model"]["merges"] = [" ".join(pair) for pair in tree["model"]["merges"]]


def whole_words(tree):
    """Without some merges, words are in the vocabulary that merges do not reach."""
    tree["model"]["ignore_merges"] = True
    tree["model"]["merges"] = [pair for i, pair in enumerate(tree["model"]["merges"]) if i % 9 != 4]


def make(texts):
    result = {}
    gpt2 = train("gpt2", 2000, pre_tokenizers.ByteLevel(add_prefix_space=False), None, ["<|endoftext|>"], texts)
    gpt2.add_tokens([AddedToken("<sep>", normalized=True)])
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    result["gpt2"] = save("gpt2", gpt2, old_merges)
    llama3 = train("llama3", 2500, split_then_bytes(LLAMA3), None, [], texts)
    llama3.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", AddedToken("<|end|>", rstrip=True), AddedToken("<|endoftext|>", lstrip=True, rstrip=True)])
    llama3.add_tokens([AddedToken("<sep>", lstrip=True, normalized=False)])
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", llama3.token_to_id("<|begin_of_text|>"))])])
    result["llama3"] = save("llama3", llama3, whole_words)
    qwen2 = train("qwen2", 2000, split_then_bytes(QWEN2), normalizers.NFC(), [], texts)
    qwen2.add_special_tokens(["<|endoftext|>"])
    qwen2.add_tokens([AddedToken("\u212b\u212b", normalized=True), AddedToken("<|end|>", normalized=True, lstrip=True), AddedToken("<sep>", normalized=False)])
    result["qwen2"] = save("qwen2", qwen2, lambda tree: None)
    digits = train("digits", 1000, digits_then_bytes(), None, ["<|endoftext|>"], texts)
    result["digits"] = save("digits", digits, lambda tree: None)
    prefixed = json.loads(result["gpt2"].to_str())
    prefixed["pre_tokenizer"]["add_prefix_space"] = True
    result["gpt2_prefix"] = Tokenizer.from_str(json.dumps(prefixed)) # the test changes the file in the same way
    return result


def main():
    with open(sys.argv[1], encoding="utf-8", newline="") as file:
        shakespeare = file.read()
    with open(f"{HERE}/multilingual.txt", encoding="utf-8", newline="") as file:
        multilingual = file.read()
    strings = [string(i) for i in range(STRINGS)]
    found = make([shakespeare[:100000], multilingual, multilingual, multilingual])
    out = []

    def put(name, values):
        out.append(" ".join([name, str(len(values)), *hashes(values)]))

    rules = {"gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False), "r50k": split_then_bytes(R50K), "llama3": split_then_bytes(LLAMA3),
             "digits": digits_then_bytes(), "cl100k": split_then_bytes(CL100K), "qwen2": split_then_bytes(QWEN2)}
    texts = {"strings": strings, "multilingual": [multilingual], "lines": [line + "\n" for line in multilingual.split("\n")[:-1]], "shakespeare": [shakespeare]}
    for kind, items in texts.items():
        for name, rule in rules.items():
            if kind != "strings" and name in ("r50k", "cl100k"): # other spellings of the same rules
                continue
            put(f"{kind}_splits_{name}", [[len(piece) for piece, _ in rule.pre_tokenize_str(text)] for text in items])
        put(f"{kind}_nfc", [list(normalizers.NFC().normalize_str(text).encode()) for text in items])
        for name, tokenizer in found.items():
            put(f"{kind}_ids_{name}", [tokenizer.encode(text, add_special_tokens=False).ids for text in items])
        for name, tokenizer in found.items():
            if (kind, name) == ("strings", "qwen2"): # theirs decodes the text of an added token as if its characters spelled bytes
                continue
            put(f"{kind}_text_{name}", [list(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids).encode()) for text in items])
    with open(f"{HERE}/results.txt", "w") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
