"""Writes records of CIFAR-10's binary files as a folder of PNG files, and the same records once more as binary files,
in the folder's order.

python3 cifar_folder.py SOURCE OUT [COUNT]    SOURCE: cifar-10-batches-bin; "-" draws COUNT records instead.
                                              COUNT: training records (all)

OUT/folder/train/CLASS/00017.png, OUT/folder/test/…, and OUT/sorted/data_batch_1.bin … test_batch.bin.

A folder's order is by class, then by name, and a shuffle is a permutation of positions, so an image must have the same
position on both sides to meet the same batch. Records are therefore sorted by class, stably, which is the folder's
order since names are the original positions; the ten names are in alphabetical order, so labels are the same too.
Python's standard library suffices."""
import os
import random
import struct
import sys
import zlib

NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()
RECORD, SIDE = 3073, 32


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(planes):
    pixels = bytearray(3 * SIDE * SIDE)
    for c in range(3):
        pixels[c::3] = planes[c * SIDE * SIDE : (c + 1) * SIDE * SIDE]
    rows = b"".join(b"\0" + pixels[3 * SIDE * y : 3 * SIDE * (y + 1)] for y in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def drawn(count):
    """Records that can be learned: a mean for each class, and noise."""
    generator = random.Random(7)
    means = [bytes(generator.randrange(40, 215) for _ in range(RECORD - 1)) for _ in NAMES]
    for i in range(count):
        label = generator.randrange(len(NAMES))
        noise = generator.randbytes(RECORD - 1)
        yield bytes([label]) + bytes(m + (n >> 3) for m, n in zip(means[label], noise))


def records(source, files):
    for file in files:
        with open(os.path.join(source, file), "rb") as data:
            while record := data.read(RECORD):
                yield record


def write(out, split, files, all_records):
    by_class = [[] for _ in NAMES]
    for position, record in enumerate(all_records):
        by_class[record[0]].append((position, record))
    in_order = []
    for label, name in enumerate(NAMES):
        folder = os.path.join(out, "folder", split, name)
        os.makedirs(folder)
        for position, record in by_class[label]:
            with open(os.path.join(folder, f"{position:05}.png"), "wb") as image:
                image.write(png(record[1:]))
            in_order.append(record)
    os.makedirs(os.path.join(out, "sorted"), exist_ok=True)
    each = -(-len(in_order) // len(files))
    for i, file in enumerate(files):
        with open(os.path.join(out, "sorted", file), "wb") as data:
            data.write(b"".join(in_order[i * each : (i + 1) * each]))


def main():
    source, out = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 50000
    train, test = [f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"]
    for split, files, most in (("train", train, count), ("test", test, max(count // 5, 50))):
        found = drawn(most) if source == "-" else records(source, files)
        write(out, split, files, [record for _, record in zip(range(most), found)])


main()
