"""Writes interop.safetensors: ResNet-20 by PyTorch under torchvision's names, its logits for two images, and the SHA-256 of the
file that the safetensors library makes of the same weights in f32. test_interop.c loads, compares, saves and compares again.

  python3 make_interop.py        (PyTorch and safetensors; run in this folder)
"""
import hashlib, torch, torch.nn as nn
from safetensors.torch import save, save_file


class Block(nn.Module):
    def __init__(self, inside, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        if stride != 1 or inside != channels:
            self.downsample = nn.Sequential(nn.Conv2d(inside, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        inside = 16
        for i, channels in enumerate((16, 32, 64)):
            blocks = [Block(inside if j == 0 else channels, channels, 2 if i and j == 0 else 1) for j in range(3)]
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
            inside = channels
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def images(count, size):
    """The same numbers as test_interop.c makes: a linear congruential generator."""
    state, values = 1, []
    for _ in range(count * size):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        values.append((state - (1 << 32) if state >= 1 << 31 else state) / 2147483648.0)
    return torch.tensor(values, dtype=torch.float64)


if __name__ == "__main__":
    torch.manual_seed(20)
    model = ResNet20()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"): buffer.normal_(0, 0.1)
            if name.endswith("running_var"): buffer.uniform_(0.5, 1.5)
            if name.endswith("num_batches_tracked"): buffer.fill_(7)
        for tensor in model.state_dict().values():
            if tensor.is_floating_point(): tensor.copy_(tensor.bfloat16())  # so that half the bytes hold it exactly
    state = model.state_dict()
    digest = hashlib.sha256(save({k: v.float() if v.is_floating_point() else v for k, v in state.items()}, {"format": "pt"})).hexdigest()
    model = model.double().eval()
    logits = model(images(2, 3 * 32 * 32).reshape(2, 3, 32, 32))
    stored = {k: v.bfloat16() if v.is_floating_point() else v for k, v in state.items()}
    save_file(stored, "resnet20.safetensors")
    save_file({"logits": logits.detach()}, "resnet20_logits.safetensors", metadata={"sha256": digest})
