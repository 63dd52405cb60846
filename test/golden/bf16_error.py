"""bf16_error.py - how far the first gradients of SimpleCNN and ResNet-20 in bf16 are from those in f64, in PyTorch: the bounds of
test_precision.c. Prints the difference, relative to the norm, with autocast and with the whole model in bf16."""
import copy

import torch
import torch.nn.functional as F
from make_training import ResNet20, SimpleCNN


def gradient(model, loss):
    loss.backward()
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])


torch.set_num_threads(1)
for build, side in ((SimpleCNN, 32), (ResNet20, 16)):
    for seed in range(3):
        torch.manual_seed(seed)
        model, x, y = build(), torch.rand(24, 3, side, side) * 2 - 1, torch.randint(0, 10, (24,))
        double, mixed, narrow = copy.deepcopy(model).double(), copy.deepcopy(model), copy.deepcopy(model).bfloat16()
        exact = gradient(double, F.cross_entropy(double(x.double()), y))
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(mixed(x).float(), y)
        for name, found in (("autocast", gradient(mixed, loss)),
                            ("all in bf16", gradient(narrow, F.cross_entropy(narrow(x.bfloat16()).float(), y)))):
            print(f"{build.__name__}, seed {seed}, {name}: {((found - exact).norm() / exact.norm()).item():.3f}")
