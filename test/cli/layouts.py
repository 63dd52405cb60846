"""Compares a run with its reference: losses, metrics and gradient norms of its steps and evaluations, and its files.

    layouts.py TOLERANCE REFERENCE OTHER

REFERENCE and OTHER are the directories of --save; beside each lies the log, REFERENCE.jsonl, unless only what was saved
is compared. A number may differ by TOLERANCE times its magnitude, an element of a tensor by TOLERANCE times the largest
element of its tensor, or a thousandth of the largest of all tensors of its kind (weights, one of the moments) where
that is more: some gradients, such as that of the bias of attention's keys, are zero but for rounding. Counts (steps,
samples, tokens) must be equal. Prints the largest difference; exit status 1 beyond TOLERANCE."""
import array
import json
import math
import os
import struct
import sys

RELATIVE = ("loss", "grad_norm", "accuracy", "perplexity", "lr")
EQUAL = ("event", "step", "epoch", "samples", "tokens")
TYPES = {"F64": "d", "F32": "f", "I32": "i", "I64": "q"}


def read_log(path):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    return [line for line in lines if line["event"] in ("step", "evaluated")]


def read_tensors(path):
    """name: values, of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        body = file.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        if about["dtype"] == "BF16":  # the upper half of an f32
            wide = bytearray(2 * (end - begin))
            wide[2::4], wide[3::4] = body[begin:end:2], body[begin + 1:end:2]
            values = array.array("f", bytes(wide))
        else:
            values = array.array(TYPES[about["dtype"]], body[begin:end])
        tensors[name] = (about["shape"], values)
    return tensors


def largest(values):
    return max((abs(value) for value in values), default=0.0)


def off(a, b, scale):
    """|a - b| in units of scale; a NaN is infinitely far."""
    difference = abs(a - b)
    if math.isnan(difference):
        return math.inf
    return 0.0 if difference == 0 else difference / scale if scale else math.inf


def compare_logs(reference, other):
    evaluated = {line["step"] for line in reference if line["event"] == "evaluated"}
    # A run also evaluates at its end, where its reference may go on.
    other = [line for line in other if line["event"] == "step" or line["step"] in evaluated]
    if len(reference) != len(other):
        sys.exit(f"{len(other)} steps and evaluations are logged, not {len(reference)}")
    for want, have in zip(reference, other):
        where = f"{want['event']} at step {want['step']}"
        for name in EQUAL:
            if want.get(name) != have.get(name):
                sys.exit(f"{where}: {name} {have.get(name)}, not {want.get(name)}")
        for name in RELATIVE:
            if (name in want) != (name in have):
                sys.exit(f"{where}: {name} is in one log alone")
            if name in want:
                difference = off(have[name], want[name], abs(want[name]))
                yield difference, f"{where}: {name} {have[name]!r}, not {want[name]!r}"


def compare_tensors(path, other):
    want, have = read_tensors(path), read_tensors(other)
    if sorted(want) != sorted(have):
        sys.exit(f"{other} has other tensors: {sorted(set(want) ^ set(have))}")
    kinds = {}
    for name, (_, values) in want.items():
        kind = name.rpartition(".")[2] if path.endswith("optimizer.safetensors") else "weight"
        kinds[kind] = max(kinds.get(kind, 0.0), largest(values))
    for name, (shape, values) in want.items():
        if have[name][0] != shape:
            sys.exit(f"{other}: {name} is {have[name][0]}, not {shape}")
        kind = name.rpartition(".")[2] if path.endswith("optimizer.safetensors") else "weight"
        scale = max(largest(values), 1e-3 * kinds[kind])
        differences = [off(a, b, scale) for a, b in zip(have[name][1], values)]
        if differences:
            at = differences.index(max(differences))
            yield differences[at], f"{other}: {name}[{at}] of {shape} is {have[name][1][at]!r}, not {values[at]!r}"


def main():
    tolerance, reference, other = float(sys.argv[1]), sys.argv[2], sys.argv[3]
    found = []
    if os.path.exists(reference + ".jsonl"):
        found += compare_logs(read_log(reference + ".jsonl"), read_log(other + ".jsonl"))
    for name in ("model", "optimizer"):
        found += compare_tensors(f"{reference}/{name}.safetensors", f"{other}/{name}.safetensors")
    worst, where = max(found)
    print(f"{worst:.1e} {where}")
    sys.exit(not worst <= tolerance)


main()
