"""Writes training.safetensors: what PyTorch computes for SimpleCNN and ResNet-20 over 50 Adam steps in f64, from weights and
batches that test_parity.c makes by the same formula. python3 make_training.py, beside this file."""
import os

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F

import draw

STEPS, PROJECTIONS = 50, 8
HERE = os.path.dirname(os.path.abspath(__file__))


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
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class BasicBlock(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*[BasicBlock(16, 16, 1) for _ in range(3)])
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2), *[BasicBlock(32, 32, 1) for _ in range(2)])
        self.layer3 = nn.Sequential(BasicBlock(32, 64, 2), *[BasicBlock(64, 64, 1) for _ in range(2)])
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def initialise(model):
    """Weights uniform within 1 / sqrt(fan_in), norms' weights in 0.75 … 1.25, biases within a tenth."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            u = draw.plain(draw.seed_of(name), *p.shape)
            if p.dim() > 1:
                u = u / np.sqrt(p[0].numel())
            elif name.endswith("weight"):
                u = 1 + u / 4
            else:
                u = u / 10
            p.copy_(torch.from_numpy(u))


def batch(step, size, dtype):
    """Noise over a coarse picture of the class; a quarter of the labels are drawn anew, so that there is no end to learning."""
    bits = draw.bits(2000 + step, size)
    kind = bits % np.uint64(10)
    x = draw.plain(1000 + step, size, 3, 32, 32) / 2
    x += np.stack([np.kron(draw.plain(3000 + int(k), 3, 4, 4), np.ones((8, 8))) / 2 for k in kind])
    y = np.where(bits >> np.uint64(62) == 0, (bits >> np.uint64(32)) % np.uint64(10), kind).astype(np.int64)
    return torch.from_numpy(x).to(dtype), torch.from_numpy(y)


def train(model, size, dtype, steps, out, prefix):
    model = model.to(dtype)
    initialise(model)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for step in range(1, steps + 1):
        x, y = batch(step, size, dtype)
        loss = F.cross_entropy(model(x), y)
        adam.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step == 1:
            first_gradients(model, out, prefix)
        adam.step()
    out[prefix + "losses"] = np.array(losses)
    model.eval()
    with torch.no_grad():
        out[prefix + "logits"] = model(batch(9999, size, dtype)[0]).double().numpy()
    return losses


def first_gradients(model, out, prefix):
    for name, p in model.named_parameters():
        g = p.grad.double().numpy().ravel()
        seed = draw.seed_of(name)
        dots = [g @ draw.plain(seed + 1 + k & 0xFFFFFFFFFFFFFFFF, g.size) for k in range(PROJECTIONS)]
        out[prefix + "gradient/" + name] = np.array([np.linalg.norm(g)] + dots)


def margin(model, number, size):
    """How near relu's kink the nearest of all its inputs lies, for one batch: a gradient can only be compared between f32 and f64
    where rounding (about 1e-6 here) cannot carry an input across."""
    model = model.double()
    initialise(model)
    nearest, plain = [], F.relu
    F.relu = lambda x: nearest.append(x.abs().min().item()) or plain(x)
    with torch.no_grad():
        model(batch(number, size, torch.float64)[0])
    F.relu = plain
    return min(nearest)


def main():
    torch.manual_seed(0)
    out = {}
    for name, model, size in (("cnn", SimpleCNN, 16), ("resnet20", ResNet20, 8)):
        print(name, train(model(), size, torch.float64, STEPS, out, name + "/")[-1])
    f32 = {}
    train(SimpleCNN(), 16, torch.float32, 20, f32, "")
    out["cnn/f32_losses"] = f32["losses"]
    clear = max(range(1, 120), key=lambda number: margin(ResNet20(), number, 2))
    out["resnet20/clear"] = np.array([clear, margin(ResNet20(), clear, 2)])
    save_file(out, os.path.join(HERE, "training.safetensors"))
    os.chmod(os.path.join(HERE, "training.safetensors"), 0o644)


if __name__ == "__main__":
    main()
