"""Writes sampler.txt: the index lists of PyTorch's DistributedSampler for test_sampler.c, a line for each case.

python3 make_sampler.py               writes the file
python3 make_sampler.py COUNT > FILE  one line for a set too large for the stored file; then build/test_sampler FILE
"""
import hashlib
import os
import sys

import numpy as np
import torch
from torch.utils.data import DistributedSampler

HERE = os.path.dirname(os.path.abspath(__file__))
COUNTS = (1, 2, 3, 7, 10, 100, 623, 624, 625, 1000, 60000)  # MT19937 makes its 624 words anew between some of these
WORLDS = (1, 2, 3, 8)
SHUFFLES = ((0, 0), (0, 1), (1, 0), (42, 3), (2**32 - 1, 2), (2**63 + 12345, 10**6))  # seed, epoch
WRITTEN_OUT = 10  # samples; lists of larger sets are given by their hash alone


def line(count, world, shuffle, drop_last, seed, epoch):
    hashed, lists = hashlib.sha256(), []
    for rank in range(world):
        sampler = DistributedSampler(range(count), world, rank, shuffle, seed, drop_last)
        sampler.set_epoch(epoch)
        lists.append(np.array(list(sampler), "<i8"))
        hashed.update(lists[-1].tobytes())
    assert all(len(a) == len(lists[0]) for a in lists)
    text = " ".join(map(str, np.concatenate(lists))) if count <= WRITTEN_OUT else ""
    words = (count, world, int(shuffle), int(drop_last), seed, epoch, len(lists[0]), hashed.hexdigest(), text)
    return " ".join(map(str, words)).rstrip()


def lines(counts, worlds, shuffles):
    yield "# count world shuffle drop_last seed epoch length sha256 (of all ranks' lists as i64, one after the other) lists"
    for count in counts:
        for world in worlds:
            for drop_last in (False, True):
                yield line(count, world, False, drop_last, 0, 1)
                for seed, epoch in shuffles:
                    yield line(count, world, True, drop_last, seed, epoch)


if __name__ == "__main__":
    if len(sys.argv) > 1:  # what one rank's list is made of, without a Python integer for each sample
        count, generator = int(sys.argv[1]), torch.Generator()
        generator.manual_seed(42 + 3)
        hashed = hashlib.sha256(torch.randperm(count, generator=generator).numpy())
        print(count, 1, 1, 0, 42, 3, count, hashed.hexdigest())
    else:
        with open(os.path.join(HERE, "sampler.txt"), "w") as file:
            file.write("\n".join(lines(COUNTS, WORLDS, SHUFFLES)) + "\n")
