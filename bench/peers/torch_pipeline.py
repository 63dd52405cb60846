#!/usr/bin/env python3
"""The GPT of torch_gpt.py small, in two stages of PyTorch on the CPU: torch.distributed.pipelining, Schedule1F1B, gloo.
OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 torch_pipeline.py [MICRO_BATCHES]    8 by default, a sequence each"""
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

LAYERS, HEADS, WIDTH, TOKENS, WORDS, STEPS = 6, 6, 384, 256, 65, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        parts = self.qkv(self.ln1(x)).split(WIDTH, 2)
        q, k, v = (part.view(len(x), TOKENS, HEADS, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(len(x), TOKENS, WIDTH)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS // 2)])

    def forward(self, ids):
        return self.blocks(self.words(ids) + self.places(torch.arange(TOKENS)))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS // 2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(x)))


def main():
    parts = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = First() if rank == 0 else Last()
    draw = torch.Generator().manual_seed(1)
    ids, labels = (torch.randint(0, WORDS, (parts, TOKENS), generator=draw) for _ in range(2))
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=parts,
                            loss_fn=lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    times = []
    for _ in range(STEPS):
        start = time.time()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(ids)
        else:
            schedule.step(target=labels, losses=[])
        optimizer.step()
        dist.barrier()
        times.append(time.time() - start)
    if rank == 1:
        times = sorted(times[2:])
        rate = parts * TOKENS / times[len(times) // 2]
        print(f"torch {torch.__version__} 1f1b micro_batches={parts} tok_per_s={rate:.0f}")
    dist.destroy_process_group()


main()
