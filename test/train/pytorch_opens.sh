#!/usr/bin/env bash
# pytorch_opens.sh - PyTorch loads what `lockstep train --save` wrote (strict) and predicts the same; `--init` loads
# what PyTorch wrote.
# ctest: timeout 300
set -eu
python3 -c 'import torch, safetensors' 2>/dev/null || { echo "skipped: python3 has no torch and safetensors"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat > check.py <<'PY'
import json, os, subprocess, sys
sys.path.insert(0, os.environ["SOURCE_DIR"] + "/test/golden")
import torch, torch.nn as nn
from make_interop import Block, ResNet20
from safetensors.torch import load_file, save_file
torch.manual_seed(0)
torch.set_num_threads(1)
lockstep = os.environ["LOCKSTEP"]


class SimpleCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(64 * 8 * 8, 512), nn.Linear(512, 10)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class ResNet18(nn.Module):
    def __init__(self, cifar):
        super().__init__()
        self.cifar = cifar
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if cifar else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inside = 64
        for i, channels in enumerate((64, 128, 256, 512)):
            blocks = Block(inside, channels, 2 if i else 1), Block(channels, channels, 1)
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
            inside = channels
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        if not self.cifar: x = torch.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


# CIFAR-10's format with random pixels: 40 training and 10 test images.
os.mkdir("cifar-10-batches-bin")
images = torch.randint(0, 256, (50, 3072), dtype=torch.uint8)
labels = torch.arange(50, dtype=torch.uint8) % 10
records = torch.cat([labels[:, None], images], 1).numpy().tobytes()
for i in range(5):
    open(f"cifar-10-batches-bin/data_batch_{i + 1}.bin", "wb").write(records[i * 8 * 3073:(i + 1) * 8 * 3073])
open("cifar-10-batches-bin/test_batch.bin", "wb").write(records[40 * 3073:])
x = (images[40:].float() / 255 - 0.5) / 0.5


def run(*arguments):
    done = subprocess.run([lockstep, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def compare(name, model, weights, *options):
    model.eval()
    with torch.no_grad(): expected = torch.softmax(model(x.reshape(-1, 3, 32, 32)).double(), 1)
    lines = run("predict", "--load", weights, "--data", "cifar10:.", "--batch", "4", "--json", *options).splitlines()
    got = torch.tensor([json.loads(line)["probabilities"] for line in lines], dtype=torch.float64)
    worst = (got - expected).abs().max().item()
    assert got.shape == expected.shape and worst < 1e-5, (name, worst)
    print(f"{name}: probabilities differ by {worst:.1e} at most")


cases = [("cnn", SimpleCNN(), ["--model", "cnn"]), ("resnet20", ResNet20(), ["--model", "resnet20"]),
         ("resnet18", ResNet18(False), ["--model", "resnet18"]),
         ("resnet18, cifar stem", ResNet18(True), ["--model", "resnet18", "--stem", "cifar"])]
for i, (name, model, options) in enumerate(cases):
    run("train", "--data", "cifar10:.", "--batch", "16", "--steps", "2", "--save", f"run{i}", *options)
    model.load_state_dict(load_file(f"run{i}/model.safetensors"), strict=True)
    compare(name + ", saved by Lockstep", model, f"run{i}", *options)
    with torch.no_grad():
        for p in model.parameters(): p.mul_(1.01)
    save_file(model.state_dict(), f"torch{i}.safetensors")
    compare(name + ", saved by PyTorch", model, f"torch{i}.safetensors", *options)
    run("train", "--data", "cifar10:.", "--batch", "16", "--steps", "1", "--init", f"torch{i}.safetensors", *options)
PY
python3 check.py
