"""Writes ddp.safetensors: what two processes of PyTorch's DistributedDataParallel over gloo compute for SimpleCNN and ResNet-20 in
f64, each with half of every batch, from the weights and batches of make_training.py. PyTorch's SyncBatchNorm wants a GPU, so
ResNet-20 has batch norm of each rank's own samples.

python3 make_ddp.py [FILE [STEPS]], beside this file."""
import os
import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from safetensors.numpy import save_file
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from make_training import ResNet20, SimpleCNN, batch, initialise

HERE = os.path.dirname(os.path.abspath(__file__))
WORLD = 2


def train(model, size, steps, rank):
    model = model.double()
    initialise(model)
    ddp = DistributedDataParallel(model)
    adam = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    half = slice(size // WORLD * rank, size // WORLD * (rank + 1))
    losses = []
    for step in range(1, steps + 1):
        x, y = batch(step, size, torch.float64)
        loss = F.cross_entropy(ddp(x[half]), y[half])
        adam.zero_grad()
        loss.backward()
        adam.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / WORLD)
    model.eval()
    x, y = batch(9999, size, torch.float64)
    with torch.no_grad():
        return losses, F.cross_entropy(model(x[: size // WORLD]), y[: size // WORLD]).item()


def work(rank, meeting, path, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=WORLD)
    out = {}
    for name, model, size in (("cnn", SimpleCNN, 16), ("resnet20", ResNet20, 8)):
        losses, evaluated = train(model(), size, steps, rank)
        out[name + "/losses"] = np.array(losses)
        out[name + "/evaluated"] = np.array([evaluated])  # rank 0's running statistics
    if rank == 0:
        save_file(out, path)
        print({k: v[-1] for k, v in out.items()})
    dist.destroy_process_group()


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "ddp.safetensors")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (os.path.join(folder, "meeting"), path, steps), nprocs=WORLD)


if __name__ == "__main__":
    main()
