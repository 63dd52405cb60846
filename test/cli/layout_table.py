#!/usr/bin/env python3
"""Writes the table of layouts.sh --hashes into the documentation:

    LOCKSTEP=build/lockstep SOURCE_DIR=. bash test/cli/layouts.sh --hashes > table.txt
    test/cli/layout_table.py table.txt docs/parallel.md docs/numbers.md

The first file gets all cells, the second one line for each task, with the number of its cells. Each has a block of code
that begins with the line of the command. Fails where two cells of a task have different hashes."""
import re
import sys

COMMAND = "LOCKSTEP=build/lockstep SOURCE_DIR=. bash test/cli/layouts.sh --hashes\n"


def read(path):
    lines = open(path).read().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("task "))
    cells = [line.rstrip() for line in lines[first + 1:] if re.search(r" (([0-9a-f]{12}|refused) +){2}$", line + " ")]
    seed = next((line for line in lines if line.startswith("LOCKSTEP_LAYOUT_SEED")), "")
    others = [line for line in lines[first + 1:] if line.rstrip() not in cells and line != seed]
    if others or not cells:
        sys.exit("expected lines of cells:\n" + "\n".join(others))
    return [lines[first].rstrip()] + cells + [seed]


def summarise(lines):
    tasks = {}
    for line in lines[1:-1]:
        task, *_, f32, bf16 = line.split()
        if f32 == "refused":
            continue
        count, hashes = tasks.get(task, (0, (f32, bf16)))
        if hashes != (f32, bf16):
            sys.exit(f"{task} has {hashes} and {(f32, bf16)}")
        tasks[task] = count + 1, hashes
    return ["task     cells  f32           bf16"] + [
        f"{task:8} {count:5}  {hashes[0]}  {hashes[1]}" for task, (count, hashes) in tasks.items()]


def write(path, lines):
    text = open(path).read()
    begin = text.index(COMMAND) + len(COMMAND)
    end = text.index("```", begin)
    with open(path, "w") as file:
        file.write(text[:begin] + "\n".join(lines) + "\n" + text[end:])


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    lines = read(sys.argv[1])
    write(sys.argv[2], lines)
    write(sys.argv[3], summarise(lines))


main()
