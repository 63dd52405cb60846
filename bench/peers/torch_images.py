"""How fast torchvision's ImageFolder with a DataLoader loads the files that bench/images loads: shuffled batches of 64,
normalised floats.

python3 torch_images.py make DIR [COUNT [HEIGHT WIDTH]]   writes JPEG files of ten classes (2000 of 224x224, quality 90)
python3 torch_images.py DIR WORKERS [HEIGHT WIDTH]        prints images per second of three epochs

The images are drawn: noise with the spectrum of photographs, and discs with sharp edges; a file has about 26 KB, as a
photograph of that size has. Decoding is Pillow's (with Pillow-SIMD absent), in worker processes that live for all
epochs."""
import os
import sys
import time

import numpy
from PIL import Image


def draw(random, height, width):
    frequency = numpy.hypot(numpy.fft.fftfreq(height)[:, None], numpy.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    shared = random.standard_normal((height, width))
    image = numpy.zeros((height, width, 3))
    for c in range(3):
        spectrum = numpy.fft.rfft2(0.9 * shared + 0.3 * random.standard_normal((height, width))) / frequency**1.15
        plane = numpy.fft.irfft2(spectrum, (height, width))
        image[..., c] = (plane - plane.mean()) / plane.std() * 50 + random.integers(80, 170)
    y, x = numpy.mgrid[0:height, 0:width]
    for _ in range(6):
        inside = ((y - random.integers(0, height)) ** 2 + (x - random.integers(0, width)) ** 2
                  < random.integers(5, height // 4) ** 2)
        image[inside] = 0.5 * image[inside] + 0.5 * random.integers(0, 256, 3)
    return numpy.clip(image, 0, 255).astype(numpy.uint8)


def make(directory, count=2000, height=224, width=224):
    random = numpy.random.default_rng(1)
    total = 0
    for i in range(int(count)):
        folder = os.path.join(directory, f"class{i % 10}")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{i:06}.jpg")
        Image.fromarray(draw(random, int(height), int(width))).save(path, quality=90)
        total += os.path.getsize(path)
    print(f"{count} files, {total / int(count) / 1000:.1f} KB each")


def load(directory, workers, height=None, width=None):
    import torch
    from torchvision import datasets, transforms

    steps = [transforms.Resize((int(height), int(width)), antialias=True)] if height else []
    steps += [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
    data = datasets.ImageFolder(directory, transforms.Compose(steps))
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, num_workers=int(workers),
                                         persistent_workers=int(workers) > 0)
    for _ in range(3):
        begun, count = time.perf_counter(), 0
        for images, _ in loader:
            count += len(images)
        print(f"{count / (time.perf_counter() - begun):.0f} images/s with {workers} workers")


make(*sys.argv[2:]) if sys.argv[1] == "make" else load(*sys.argv[1:])
