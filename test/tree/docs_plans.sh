#!/usr/bin/env bash
# docs_plans.sh - every `$ lockstep plan …` in README.md and docs/ prints the output shown below it. A line of … matches
# any lines, … at the end of a line its rest; a command that is refused prints its message. Workspace and what includes
# it depend on the instruction set: they are compared on NEON.
set -eu
command -v python3 > /dev/null || { echo "skipped: there is no python3"; exit 77; }
exec python3 - "$LOCKSTEP" "$SOURCE_DIR" <<'PY'
import glob, json, os, re, subprocess, sys

command, source = sys.argv[1:]
isa = json.loads(subprocess.run([command, "info", "--json"], capture_output=True, check=True).stdout)["isa"]


def documented(path):
    """Each command of a fenced block, with its line number and the output below it."""
    inside, found, all = False, None, []
    for number, line in enumerate(open(path), 1):
        if line.startswith("```"):
            inside, found = not inside, None
        elif inside and re.match(r"\$ (build/)?lockstep plan ", line):
            found = (number, line[2:].strip(), [])
            all.append(found)
        elif inside and found:
            found[2].append(line.rstrip("\n"))
    return all


def pattern(lines):
    text = ""
    for line in lines:
        if line.strip() == "…":
            text += r"(.*\n)*?"
        elif isa not in ("neon", "neon_bf16") and re.match("workspace|total|shared  |replicated  ", line):
            text += line.split()[0] + r" .*\n"
        elif line.endswith("…"):
            text += re.escape(line[:-1]) + r".*\n"
        else:
            text += re.escape(line) + r"\n"
    return text


count, wrong = 0, 0
for path in [source + "/README.md"] + sorted(glob.glob(source + "/docs/*.md")):
    for number, line, expected in documented(path):
        count += 1
        asked = re.sub(r"^(build/)?lockstep ", '"$LOCKSTEP" ', line)
        run = subprocess.run(["bash", "-c", asked], capture_output=True, text=True)
        refused = bool(expected) and expected[0].startswith("lockstep plan: ")
        shown = run.stderr if refused else run.stdout
        if run.returncode != 2 * refused or not expected or not re.fullmatch(pattern(expected), shown):
            wrong += 1
            print(f"{os.path.relpath(path, source)}:{number}: {line}: documented output\n" + "\n".join(expected) +
                  "\nactual output\n" + run.stdout + run.stderr, file=sys.stderr)
print(f"{count} commands, {wrong} with different output")
sys.exit(wrong > 0 or count < 5)
PY
