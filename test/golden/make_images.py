"""Image files of every kind, and the samples that Pillow and torchvision decode from them: images/ and images.bin, with images.txt.

A line of images.txt: file, channels, height, width (of the sample), resized or not, then where the values come from (pillow, tensor: torchvision on
a tensor of bytes), the largest mean and the largest single difference that are allowed, and the offset of the sample (channels, height, width) in
images.bin. Needs Pillow, NumPy, PyTorch and torchvision; made with Pillow 13.0, torchvision 0.29."""
import io
import os
import struct
import zlib

import numpy
import torch
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional

here = os.path.dirname(os.path.abspath(__file__))
folder = os.path.join(here, "images")
os.makedirs(folder, exist_ok=True)
random = numpy.random.default_rng(11)
lines, samples = [], io.BytesIO()


def picture(height, width, channels):
    """Smooth areas, detail and edges: (height, width, channels) of bytes."""
    image = numpy.zeros((height, width, channels))
    for scale, weight in ((16, 0.5), (5, 0.3), (1, 0.2)):
        small = random.integers(0, 256, (height // scale + 2, width // scale + 2, channels), dtype=numpy.uint8)
        for c in range(channels):
            large = Image.fromarray(numpy.ascontiguousarray(small[..., c])).resize((width, height), Image.BICUBIC)
            image[..., c] += weight * numpy.asarray(large, dtype=float)
    image[height // 3 : height // 2, width // 4 :] *= 0.3
    return numpy.clip((image - 128) * 1.7 + 128, 0, 255).astype(numpy.uint8)


def png(height, width, depth, kind, rows, palette=None, transparent=None, interlaced=False, exif=None):
    """A PNG file with any depth, and with Adam7. rows: (height, width, components) of integers."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    def scanlines(part):
        lines = []
        for y, row in enumerate(part):
            bits = "".join(format(int(v), f"0{depth}b") for v in row.reshape(-1))
            bits += "0" * (-len(bits) % 8)
            data = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
            step = max(1, depth * part.shape[2] // 8)
            if y % 2:  # filter Sub in every second line
                data = bytes((data[i] - (data[i - step] if i >= step else 0)) % 256 for i in range(len(data)))
            lines.append(bytes([y % 2]) + data)
        return b"".join(lines)

    if interlaced:
        starts = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
        data = b"".join(scanlines(rows[y::dy, x::dx]) for y, x, dy, dx in starts if rows[y::dy, x::dx].size)
    else:
        data = scanlines(rows)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced))
    file += chunk(b"gAMA", struct.pack(">I", 45455)) + chunk(b"tEXt", b"Comment\0made by make_images.py")
    if exif:
        file += chunk(b"eXIf", exif)
    if palette is not None:
        file += chunk(b"PLTE", palette.tobytes())
    if transparent is not None:
        file += chunk(b"tRNS", transparent)
    data = zlib.compress(data, 9)
    return file + chunk(b"IDAT", data[: len(data) // 2]) + chunk(b"IDAT", data[len(data) // 2 :]) + chunk(b"IEND", b"")


def saved(image, format, **settings):
    file = io.BytesIO()
    image.save(file, format, **settings)
    return file.getvalue()


def planes(image):
    values = numpy.asarray(image)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def decoded(file, channels, size=None):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB" if channels == 3 else "L")
    return planes(image.resize((size[1], size[0]), Image.BILINEAR) if size else image)


def expect(name, sample, resized, source, mean, most):
    sample = numpy.ascontiguousarray(sample, dtype=numpy.uint8)
    c, h, w = sample.shape
    lines.append(f"{name} {c} {h} {w} {'resized' if resized else 'as-stored'} {source} {mean} {most} {samples.tell()}")
    samples.write(sample.tobytes())


def case(name, file, sizes=(), values=None, mean=0, most=0, whole=True):
    """values: the sample (channels, height, width), where Pillow's is not meant. whole: also without resizing."""
    with open(os.path.join(folder, name), "wb") as out:
        out.write(file)
    for channels in () if not whole else (3, 1) if values is None else (values.shape[0],):
        expect(name, decoded(file, channels) if values is None else values, False, "pillow", 0, 0)
    for size in sizes:
        expect(name, decoded(file, 3, size), True, "pillow", mean, most)
        stored = torch.from_numpy(numpy.array(decoded(file, 3)))
        expect(name, functional.resize(stored, list(size), antialias=True).numpy(), True, "tensor", max(mean, 0.1), max(most, 1))


def exif(orientation, order):
    entries = [(0x010E, 2, 5, b"text\0"), (0x0112, 3, 1, struct.pack(order + "HH", orientation, 0))]
    block = (b"II" if order == "<" else b"MM") + struct.pack(order + "HIH", 42, 8, len(entries))
    for tag, kind, count, data in entries:
        block += struct.pack(order + "HHI", tag, kind, count) + (data if len(data) == 4 else struct.pack(order + "I", 38))
    return block + struct.pack(order + "I", 0) + b"text\0"


h, w = 23, 37
rgb = picture(h, w, 3)
grey = picture(h, w, 1)
alpha = picture(h, w, 1)
image = Image.fromarray(rgb)

# PNG: every colour type and depth
case("rgb8.png", png(h, w, 8, 2, rgb), [(11, 19), (40, 50), (23, 10), (9, 37), (1, 1)], most=1)
case("rgb8-adam7.png", png(h, w, 8, 2, rgb, interlaced=True))
wide = rgb.astype(int) * 256 + random.integers(0, 256, rgb.shape)
case("rgb16.png", png(h, w, 16, 2, wide))
case("rgba8.png", png(h, w, 8, 6, numpy.concatenate([rgb, alpha], -1)))
case("rgba16-adam7.png", png(h, w, 16, 6, numpy.concatenate([wide, wide[..., :1]], -1), interlaced=True))
case("grey8.png", png(h, w, 8, 0, grey), [(11, 19)], most=1)
case("grey8-key.png", png(h, w, 8, 0, grey, transparent=struct.pack(">H", int(grey[3, 3, 0]))))
case("rgb8-key.png", png(h, w, 8, 2, rgb, transparent=struct.pack(">HHH", *(int(v) for v in rgb[3, 3]))))
for depth in (1, 2, 4):
    case(f"grey{depth}.png", png(h, w, depth, 0, grey >> (8 - depth)))
case("grey2-adam7.png", png(h, w, 2, 0, grey >> 6, interlaced=True))
case("grey-alpha8.png", png(h, w, 8, 4, numpy.concatenate([grey, alpha], -1)))
# Pillow clips grey of 16 bits at 255; here it is the high byte, as in RGB
deep = grey.astype(int) * 256 + 77
case("grey16.png", png(h, w, 16, 0, deep), values=planes(Image.fromarray(grey[..., 0])))
case("grey-alpha16.png", png(h, w, 16, 4, numpy.concatenate([deep, deep], -1)), values=planes(Image.fromarray(grey[..., 0])))
for depth in (1, 2, 4, 8):
    colours = min(1 << depth, 100)
    palette = random.integers(0, 256, (colours, 3), dtype=numpy.uint8)
    index = random.integers(0, colours, (h, w, 1))
    case(f"palette{depth}.png", png(h, w, depth, 3, index, palette))
case("palette4-alpha-adam7.png", png(h, w, 4, 3, random.integers(0, 16, (h, w, 1)), random.integers(0, 256, (16, 3), dtype=numpy.uint8),
                                     bytes(range(0, 160, 10)), interlaced=True))
for height, width in ((1, 1), (1, 17), (19, 1)):
    case(f"{height}x{width}.png", png(height, width, 8, 2, picture(height, width, 3)), [(5, 3)], most=1)
    case(f"{height}x{width}-adam7.png", png(height, width, 8, 0, picture(height, width, 1), interlaced=True))

# JPEG
for subsampling, name in ((0, "444"), (1, "422"), (2, "420")):
    case(f"{name}.jpg", saved(image, "JPEG", quality=85, subsampling=subsampling), [(11, 19), (40, 50)], most=1)
    case(f"{name}-progressive.jpg", saved(image, "JPEG", quality=85, subsampling=subsampling, progressive=True))
case("rgb.jpg", saved(image, "JPEG", quality=90, keep_rgb=True))
case("restart.jpg", saved(image, "JPEG", quality=80, restart_marker_blocks=2, optimize=True))
case("grey.jpg", saved(Image.fromarray(grey[..., 0]), "JPEG", quality=85), [(11, 19)], most=1)
case("grey-progressive.jpg", saved(Image.fromarray(grey[..., 0]), "JPEG", quality=85, progressive=True))
case("cmyk.jpg", saved(Image.fromarray(picture(h, w, 4), "CMYK"), "JPEG", quality=90))
case("cmyk-progressive.jpg", saved(Image.fromarray(picture(h, w, 4), "CMYK"), "JPEG", quality=90, progressive=True))
case("1x1.jpg", saved(Image.fromarray(picture(1, 1, 3)), "JPEG"))
case("1x17.jpg", saved(Image.fromarray(picture(1, 17, 3)), "JPEG"))
case("19x1.jpg", saved(Image.fromarray(picture(19, 1, 3)), "JPEG"))

# Reduced while it is decoded: by 2, by 4 and by 8, with sizes that these do not divide
large = Image.fromarray(picture(275, 403, 3))
case("large.jpg", saved(large, "JPEG", quality=85), [(33, 50), (17, 25), (8, 12)], mean=0.8, most=12, whole=False)
turned = exif(6, "<")
case("large-orientation6.jpg", saved(large, "JPEG", quality=85, exif=b"Exif\0\0" + turned), [(50, 33), (25, 17)], mean=0.8, most=12, whole=False)

# EXIF orientation, in both byte orders
for orientation in range(1, 9):
    block = exif(orientation, "<>"[orientation % 2])
    case(f"orientation{orientation}.jpg", saved(image, "JPEG", quality=85, exif=b"Exif\0\0" + block), [(11, 19)], mean=0.3, most=1)
    case(f"orientation{orientation}.png", png(h, w, 8, 2, rgb, exif=block, interlaced=orientation == 7), [(11, 19)], mean=0.3, most=1)

with open(os.path.join(here, "images.bin"), "wb") as out:
    out.write(samples.getvalue())
with open(os.path.join(here, "images.txt"), "w") as out:
    out.write("\n".join(lines) + "\n")
print(len(lines), "samples,", samples.tell(), "bytes")
