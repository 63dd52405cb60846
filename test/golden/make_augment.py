"""Writes augment.safetensors: what torchvision's functional transforms make of two images, in f64. test_data_augment.c compares. The
images are draw.unit(seed, channels, height, width), rounded to f32.

  python3 make_augment.py        (torchvision and safetensors; run in this folder)
"""
import torch, torchvision.transforms.functional as F
from safetensors.torch import save_file
from torchvision.transforms import InterpolationMode

import draw

values = {}
for seed, shape in ((1, (3, 13, 17)), (2, (1, 8, 5))):
    image = torch.tensor(draw.unit(seed, *shape)).float().double()
    height, width = shape[1:]
    name = f"{seed}."
    for i, (top, left, h, w) in enumerate(((0, 0, height, width), (2, 1, 4, 3), (height - 1, 0, 1, width), (3, 2, 5, 3))):
        values[f"{name}resize.{i}"] = F.resized_crop(image, top, left, h, w, [height, width], InterpolationMode.BILINEAR, antialias=True)
    for i, angle in enumerate((0.0, 90.0, -33.5, 7.25, 180.0)):
        values[f"{name}rotate.{i}"] = F.rotate(image, angle, InterpolationMode.BILINEAR)
    for i, factor in enumerate((0.0, 0.5, 1.7)):
        values[f"{name}brightness.{i}"] = F.adjust_brightness(image, factor)
        values[f"{name}contrast.{i}"] = F.adjust_contrast(image, factor)
        values[f"{name}saturation.{i}"] = F.adjust_saturation(image, factor)
    for i, factor in enumerate((-0.5, 0.11, 0.4)):
        values[f"{name}hue.{i}"] = F.adjust_hue(image, factor)
    # the order of operations matters: hue, brightness, saturation, contrast
    values[f"{name}jitter"] = F.adjust_contrast(F.adjust_saturation(F.adjust_brightness(F.adjust_hue(image, 0.2), 1.3), 0.6), 1.4)

# The loss of mixup, and its gradient: the mean over samples, weighted in the last case.
label, label_2 = torch.tensor([0, 3, 1, 3, 2]), torch.tensor([1, 3, 0, 2, 0])
mix, weight = torch.tensor([0.25, 0.5, 1.0, 0.0, 0.875]).double(), torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0]).double()
for i, (smoothing, weights) in enumerate(((0.0, torch.ones(5).double()), (0.1, torch.ones(5).double()), (0.0, weight))):
    logits = torch.tensor(8 * draw.plain(7, 5, 4), requires_grad=True)
    first, second = (torch.nn.functional.cross_entropy(logits, l, reduction="none", label_smoothing=smoothing) for l in (label, label_2))
    loss = (weights * (mix * first + (1 - mix) * second)).sum() / weights.sum()
    loss.backward()
    values[f"mixup.{i}.loss"], values[f"mixup.{i}.gradient"] = loss.detach().reshape(1), logits.grad
save_file({k: v.contiguous().clone() for k, v in values.items()}, "augment.safetensors")
