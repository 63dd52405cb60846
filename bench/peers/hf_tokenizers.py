"""How fast Hugging Face's `tokenizers` encodes a text file on one thread: the peer of bench/tokenizer.c.

    python3 hf_tokenizers.py TOKENIZER.json FILE [TIMES]
"""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer, __version__  # noqa: E402

tokenizer = Tokenizer.from_file(sys.argv[1])
with open(sys.argv[2], encoding="utf-8", newline="") as file:
    text = file.read()
best = float("inf")
for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 3):
    begun = time.perf_counter()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    best = min(best, time.perf_counter() - begun)
size = len(text.encode())
print(f"tokenizers {__version__}: {size} bytes, {len(ids)} tokens: {size / best / 1e6:.2f} MB/s")
