"""bf16_error.py - how far the first gradients of SimpleCNN and ResNet-20 in bf16 are from those in f64, in PyTorch: the bounds of
test_precision.c. Prints the difference, relative to the norm, with autocast and with the whole model in bf16."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class SimpleCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 8 * 8, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Block(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        layers, channels = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()], 16
        for width, stride in ((16, 1), (32, 2), (64, 2)):
            for i in range(3):
                layers.append(Block(channels, width, stride if i == 0 else 1))
                channels = width
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(self.layers(x).mean((2, 3)))


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
