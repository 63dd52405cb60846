"""Compares tokenizers with Hugging Face's `tokenizers` and `transformers`, live; test/data/tokenizers_agree.sh and,
with --quick, test/train/interop.sh run it.
Argument: liblockstep.so. With --quick not every character of Unicode is compared.

Other strings and another vocabulary than those whose results are stored in test/golden/tokenizers; random bytes against
Python's errors="replace"; and the directories that lk_tokenizer_files gives, opened by AutoTokenizer as parts of a
model's directory."""
import ctypes as c
import json
import os
import random
import sys
import tempfile

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(HERE, "golden"))
os.environ["HF_HUB_OFFLINE"] = "1"

import make_tokenizers as golden  # noqa: E402
import tokenizers  # noqa: E402
from tokenizers import AddedToken, Tokenizer, normalizers  # noqa: E402

lk = c.CDLL(sys.argv[1])
lk.lk_context_error.restype = c.c_char_p
lk.lk_tokenizer_kind.restype = c.c_char_p
lk.lk_tokenizer_decode.restype = c.c_size_t


class File(c.Structure):
    _fields_ = [("name", c.c_char_p), ("text", c.POINTER(c.c_char)), ("bytes", c.c_size_t)]


lk.lk_tokenizer_files.restype = c.POINTER(File)
context = c.c_void_p()
assert lk.lk_context_create(None, c.byref(context)) == 0


class Ours:
    def __init__(self, function, *arguments):
        self.handle = c.c_void_p()
        if function(context, *arguments, c.byref(self.handle)) < 0:
            raise RuntimeError(lk.lk_context_error(context).decode())

    def encode(self, data):
        room = 3 * len(data) + 1
        ids, count, invalid = (c.c_int32 * room)(), c.c_size_t(), c.c_size_t()
        if lk.lk_tokenizer_encode(self.handle, data, c.c_size_t(len(data)), ids, c.c_size_t(room), c.byref(count),
                                  c.byref(invalid)) < 0:
            raise RuntimeError(lk.lk_context_error(context).decode())
        return ids[: count.value], invalid.value

    def decode(self, ids):
        array = (c.c_int32 * len(ids))(*ids)
        room = lk.lk_tokenizer_decode(self.handle, array, c.c_size_t(len(ids)), None, c.c_size_t(0))
        text = c.create_string_buffer(room + 1)
        lk.lk_tokenizer_decode(self.handle, array, c.c_size_t(len(ids)), text, c.c_size_t(room))
        return text.raw[:room]

    def save(self, directory):
        count = c.c_int()
        files = lk.lk_tokenizer_files(self.handle, c.byref(count))
        for i in range(count.value):
            with open(os.path.join(directory, files[i].name.decode()), "wb") as file:
                file.write(files[i].text[: files[i].bytes])

    def __del__(self):
        lk.lk_tokenizer_free(self.handle)


def opened(name): return Ours(lk.lk_tokenizer_open, name.encode())


def from_text(data): return Ours(lk.lk_tokenizer_from_text, data, c.c_size_t(len(data)))


def describe_difference(name, text, ids, wanted):
    at = next((i for i, (a, b) in enumerate(zip(ids, wanted)) if a != b), min(len(ids), len(wanted)))
    return (f"{name}: {ascii(text[:200])}: id {at} of {ids[max(0, at - 5):at + 5]}, "
            f"tokenizers {wanted[max(0, at - 5):at + 5]}")


def compare(name, ours, theirs, texts):
    for text in texts:
        wanted, (ids, invalid) = theirs.encode(text, add_special_tokens=False).ids, ours.encode(text.encode())
        assert ids == wanted and invalid == 0, describe_difference(name, text, ids, wanted)
    print(f"ok   {name}: {len(texts)} texts")


def compare_vocabularies(multilingual):
    strings = [golden.string(seed) for seed in range(20000, 23000)] + [multilingual]
    for name in ("gpt2", "llama3", "qwen2", "digits"):
        path = f"{golden.HERE}/{name}.json"
        compare(name, opened(path), Tokenizer.from_file(path), strings)
    fresh = golden.train("fresh", 700, golden.split_then_bytes(golden.CL100K),
                         normalizers.Sequence([normalizers.NFC()]), ["<|endoftext|>"], [multilingual])
    fresh.add_tokens([AddedToken("<|end", lstrip=True, rstrip=True), AddedToken("the", normalized=True), " and"])
    with tempfile.TemporaryDirectory() as directory:
        fresh.save(directory + "/tokenizer.json")
        compare("trained now", opened(directory), fresh, strings)


def compare_characters():
    """Every character after a letter, an apostrophe, a space and a mark, and before a letter and a digit."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = ["".join(f"a{ch}'{ch}x {ch}1\u0301{ch}" for ch in characters[first:first + 2000])
             for first in range(0, len(characters), 2000)]
    for name in ("llama3", "qwen2", "digits"):
        path = f"{golden.HERE}/{name}.json"
        compare(f"{name}, every character", opened(path), Tokenizer.from_file(path), texts)


def compare_invalid():
    draw = random.Random(7)
    for _ in range(3000):
        data = bytes(draw.choice((draw.randrange(256), draw.randrange(0x80, 0x100), 0xE2, 0xF0, 0x9F, 0x41))
                     for _ in range(draw.randrange(1, 30)))
        wanted = data.decode("utf-8", errors="replace")
        ours = from_text(data)
        ids, invalid = ours.encode(data)
        replaced = wanted.count("\ufffd") - data.count("\ufffd".encode())
        assert ours.decode(ids).decode() == wanted and invalid == replaced, data
    print("ok   invalid UTF-8: 3000 texts")


def compare_directories(multilingual):
    import transformers

    transformers.logging.set_verbosity_error()
    models = [None, ("gpt2", "GPT2LMHeadModel"), ("llama", "LlamaForCausalLM")]
    for name in ("byte", "char", *(f"{golden.HERE}/{file}.json" for file in ("gpt2", "llama3", "qwen2", "digits"))):
        ours = from_text(multilingual.encode()) if name == "char" else opened(name)
        for model in models:
            with tempfile.TemporaryDirectory() as directory:
                ours.save(directory)
                if model:
                    with open(directory + "/config.json", "w") as file:
                        json.dump({"model_type": model[0], "architectures": [model[1]], "bos_token_id": None,
                                   "eos_token_id": None}, file)
                theirs = transformers.AutoTokenizer.from_pretrained(directory)
                ids = theirs.encode(multilingual, add_special_tokens=False)
                assert ids == ours.encode(multilingual.encode())[0], (name, model)
                assert theirs.decode(ids).encode() == ours.decode(ids), (name, model)
                again = opened(directory)
                assert lk.lk_tokenizer_kind(again.handle) == lk.lk_tokenizer_kind(ours.handle)
    print(f"ok   AutoTokenizer of transformers {transformers.__version__}: 6 tokenizers")


with open(f"{golden.HERE}/multilingual.txt", encoding="utf-8", newline="") as file:
    text = file.read()
print(f"tokenizers {tokenizers.__version__}")
compare_vocabularies(text)
if "--quick" not in sys.argv:
    compare_characters()
compare_invalid()
try:
    compare_directories(text)
except ImportError:
    print("skip AutoTokenizer: there is no transformers")
