#!/usr/bin/env python3
"""Finds where two runs differ first: digests.py A B, files of LOCKSTEP_DIGESTS=A and =B of runs of one batch part.

    LOCKSTEP_DIGESTS=one lockstep train …
    LOCKSTEP_DIGESTS=two lockstep train … --mesh tensor=2
    digests.py one two

Compares digests of values by their number, which is the same in both graphs; those of parts are added. Prints the first
values that differ, in the order in which the first run reads or writes them, and exits with 1; 0: none does."""
import glob
import sys


def read(path):
    """{(list, step, leaf, value, side of a state): (digest, text, parts)}, in the order of rank 0's file."""
    found, ranks = {}, {}
    for rank, name in enumerate(sorted(glob.glob(path + ".*"), key=lambda n: int(n.rsplit(".", 1)[1]))):
        seen = set()
        for line in open(name):
            of, step, leaf, op, side, index, value, kind, shape, first, digest, state = line.split()
            # The first digest counts, of a state both the first that is read and the first that is written.
            key = (of, int(step), int(leaf), int(value), side if state != "-" else "")
            if key in seen:
                continue
            seen.add(key)
            parts = ranks.setdefault(key, {})
            parts.setdefault(first, int(digest, 16))
            found.setdefault(key, f"{op} {side} {index} %{value} {kind} ({shape}) {state}")
    return {key: (sum(ranks[key].values()) % 2**64, found[key], len(ranks[key])) for key in found}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    one, two = read(sys.argv[1]), read(sys.argv[2])
    common = [key for key in one if key in two]
    wrong = [key for key in common if one[key][0] != two[key][0]]
    for key in wrong[:10]:
        print(f"{key[0]} step {key[1]} leaf {key[2]}: {one[key][1]} | {two[key][1]}, {two[key][2]} parts")
    alone = len(one) + len(two) - 2 * len(common)
    print(f"{len(wrong)} of {len(common)} values differ; {alone} are in one run only")
    sys.exit(1 if wrong or not common else 0)


main()
