"""The numbers of test/support.h: splitmix64 of (seed, index), so that C and Python draw the same without storing them."""
import numpy as np


def bits(seed, count):
    with np.errstate(over="ignore"):
        index = np.arange(1, count + 1, dtype=np.uint64)
        start = np.uint64(seed * 0xD1342543DE82EF95 & 0xFFFFFFFFFFFFFFFF)
        z = start + index * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)


def unit(seed, *shape):
    """Uniform in [0, 1)."""
    count = int(np.prod(shape, dtype=np.int64))
    return ((bits(seed, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)


def plain(seed, *shape):
    return 2 * unit(seed, *shape) - 1


def positive(seed, *shape):
    return 1 + unit(seed, *shape)


def wide(seed, *shape):
    return 16 * unit(seed, *shape) - 8


def spread(seed, *shape):
    """All different, none near 0."""
    count = int(np.prod(shape, dtype=np.int64))
    step = int(count * 0.6180339887) if count > 2 else 1
    while np.gcd(step, count) != 1:
        step += 1
    place = (np.arange(count, dtype=np.int64) * step + seed) % count
    return (2 * (place + 0.3) / count - 1).reshape(shape)


def seed_of(name):
    """FNV-1a of a name, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h
