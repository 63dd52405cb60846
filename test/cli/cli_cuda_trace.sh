#!/usr/bin/env bash
# cli_cuda_trace.sh - --trace and --profile on the device cuda, in the emulation: by the reports of a stand-in for CUPTI
# and by events. Both show the CPU's instructions in the CPU's order. `cli_cuda_trace.sh gpu`: on a GPU.
# ctest: timeout 240, ranks 2
set -eu
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }
export LOCKSTEP_DEVICE=cuda
if [ "${1:-}" != gpu ]; then
    export LOCKSTEP_MODULES=$BUILD_DIR/cuda_emulated LK_CUDA_EMULATED_CUPTI=1
    [ -f "$LOCKSTEP_MODULES/liblockstep-cuda.so" ] || { echo "skipped: this build has no emulation of CUDA"; exit 77; }
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$*"; exit 1; }
train=("$LOCKSTEP" train --model mlp --batch 16 --threads 1 --steps 12 --trace-steps 3 --data-on-device no)
loss() { # loss NAME OPTIONS…: a run with the trace NAME.json; its loss
    local name=$1
    shift
    "${train[@]}" --trace "$name.json" "$@" > "$name.txt" 2>&1 || fail "$*: $(cat "$name.txt")"
    grep -o 'test loss [0-9.]*' "$name.txt"
}

# Small models run several instructions in one launch; to compare with the CPU's, one by one.
export LOCKSTEP_CUDA_LAUNCH_GROUPS=0

# A trace changes no number; where CUPTI is not used the reason is said, and events do.
plain=$("$LOCKSTEP" train --model mlp --batch 16 --threads 1 --steps 12 2>&1 | grep -o 'test loss [0-9.]*')
loss cpu --device cpu > /dev/null
[ "$(loss reports)" = "$plain" ] || fail "a trace by CUPTI changes the loss"
[ "$(LOCKSTEP_CUDA_CUPTI=0 loss events)" = "$plain" ] || fail "a trace by events changes the loss"
[ "$(loss made --data-on-device yes)" = "$plain" ] || fail "a trace with data on the device changes the loss"
[ "$(LOCKSTEP_CUDA_LAUNCH_GROUPS=1 loss groups)" = "$plain" ] || fail "launch groups change the loss"
loss ranks -n 2 --share-device > /dev/null
grep -q 'timed by events.*LOCKSTEP_CUDA_CUPTI is 0' events.txt || fail "no reason for events: $(cat events.txt)"
! grep -E 'warning|timed by events' reports.txt made.txt ranks.txt || fail "CUPTI did not do"
traces="reports events"
if [ "${1:-}" != gpu ]; then
    LK_CUDA_EMULATED_CUPTI=refuse loss refused > /dev/null
    LK_CUDA_EMULATED_CUPTI=0 loss missing > /dev/null
    grep -q 'timed by events.*CUPTI failed' refused.txt || fail "no reason after a refusal: $(cat refused.txt)"
    grep -q 'timed by events.*libcupti' missing.txt || fail "no reason without the library: $(cat missing.txt)"
    traces="reports events refused missing"
fi

# shellcheck disable=SC2086
python3 - $traces <<'PY'
import json
import re
import sys


def load(name):
    with open(name + ".json", encoding="utf-8") as file:
        trace = json.load(file)
    assert trace["otherData"]["dropped_events"] == 0, name
    tracks = {e["args"]["name"]: e["tid"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    return tracks, [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]


def kernels(events):
    return sorted((e for e in events if e["cat"] == "kernel"), key=lambda e: e["ts"])


def distinct(events):  # in their order, several kernels of one instruction once
    names = []
    for e in events:
        if not names or names[-1] != e["name"]:
            names.append(e["name"])
    return names


# The update runs together on the GPU, and has work of its own; forward and backward are the CPU's, in its order.
_, cpu = load("cpu")
expected = [n for n in distinct(kernels(cpu)) if "= adam" not in n]
assert len(expected) % 3 == 0 and len(expected) > 20, expected
for name in sys.argv[1:]:
    tracks, events = load(name)
    assert {"steps", "GPU kernels", "GPU copies"} <= set(tracks) and "compute" not in tracks, (name, tracks)
    ran = kernels(events)
    assert {e["tid"] for e in ran} == {tracks["GPU kernels"]}, name
    own = [n for n in distinct(ran) if " = " in n]
    assert own == expected, (name, own, expected)
    assert sum(n.startswith("adam, 4 instructions") for n in distinct(ran)) == 3, (name, distinct(ran))
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1 for a, b in zip(ran, ran[1:])), name
    steps = [e for e in events if e["cat"] == "step"]
    assert len(steps) == 3 and min(e["ts"] for e in steps) <= ran[0]["ts"], name
    copies = [e for e in events if e["cat"] == "copy"]
    assert {e["tid"] for e in copies} == {tracks["GPU copies"]}, name
    batch = [e["args"]["bytes"] for e in copies if e["name"] == "copy to the device"]
    assert len(batch) == 3 and min(batch) >= 16 * (64 * 4 + 4), (name, batch)  # features and labels
_, made = load("made")  # the device makes the batches: a kernel at the beginning of each step, and no copies
ran = distinct(kernels(made))
assert [n for n in ran if " = " in n] == expected and sum(n == "rows of the batch" for n in ran) == 3, ran
assert ran[0] == "rows of the batch" and not any(e["cat"] == "copy" for e in made), ran
_, groups = load("groups")  # one name for what was one launch
ran = distinct(kernels(groups))
assert [n for n in ran if " = " in n] == [n for n in expected if "features" in n or "linear(" in n], ran
for joint in ("cross_entropy_grad, 2", "unary_grad, 3", "adam, 5"):
    assert ran.count(joint + " instructions in one launch") == 3, (joint, ran)
# A rank's half of the batch; its buckets are values, too, so that later ones have other numbers.
tracks, ranks = load("ranks")
found = {re.sub("%[0-9]+", "%", n) for n in distinct(kernels(ranks))}
half = {re.sub("%[0-9]+", "%", n).replace("(16*", "(8*") for n in expected}
assert half <= found, (half, found)
assert any(e["cat"] == "collective" for e in ranks) and "GPU copies" in tracks
PY

# Profiles: operations and bytes by hand, and what bounds them.
for by in events CUPTI; do
    export LOCKSTEP_CUDA_CUPTI=0
    [ $by = events ] || LOCKSTEP_CUDA_CUPTI=1
    "$LOCKSTEP" bench train --model mlp --batch 16 --steps 8 --profile --json > $by.jsonl 2> err.txt ||
        fail "$(cat err.txt)"
    "$LOCKSTEP" bench train --model mlp --batch 16 --steps 8 --profile > table.txt 2> err.txt || fail "$(cat err.txt)"
    grep -q "by $by\$" table.txt || fail "not by $by: $(cat table.txt)"
    grep -q 'measured bounds: .* in f32, .* GB/s' table.txt || fail "no speed: $(cat table.txt)"
    grep -qE ' (bytes|arithmetic|latency) +[0-9.]+ %  linear f32 \(16\*, 64\), \(128, 64\) -> \(16\*, 128\)' table.txt \
        || fail "no bound: $(cat table.txt)"
    python3 - $by <<'PY'
import json
import sys

with open(sys.argv[1] + ".jsonl") as file:
    head, *rows = [json.loads(line) for line in file]
assert head["profiled_by"] == sys.argv[1], head
rows = {(r["operation"], r["shapes"]): r for r in rows}
first = rows["linear", "(16*, 64), (128, 64) -> (16*, 128)"]
assert first["flops"] == 2 * 16 * 64 * 128 and first["bytes"] == 4 * (16 * 64 + 128 * 64 + 128 + 16 * 128), first
assert first["calls"] == 1 and first["dtype"] == "f32", first
assert rows["linear_grad_weight", "(16*, 64), (16*, 128) -> (128, 64)"]["flops"] == first["flops"]
bounded = [r for r in rows.values() if r["bound"]]
assert len(bounded) >= 8 and all(r["bound"] in ("bytes", "arithmetic", "latency") for r in bounded), rows
assert all(r["ms"] > 0 and abs(r["reached"] - r["bound_ms"] / r["ms"]) < 1e-9 for r in bounded), rows
assert rows["adam", "4 instructions in one launch"]["calls"] == 1, rows
assert not any(name in ("do_nothing", "fill_numbers") for name, _ in rows), rows  # the measurement is no part of a step
PY
done

# Utilisation is in proportion to the GPU's own products, which are measured once.
for i in 1 2 3 4 5 6 7 8; do echo "To be, or not to be, that is the question: line $i of the text."; done > text.txt
"$LOCKSTEP" train --model gpt --layers 1 --heads 2 --width 32 --context 16 --data text:text.txt --tokenizer char \
    --steps 3 --batch 2 --eval-every -1 --log log.jsonl > out.txt 2>&1 || fail "$(cat out.txt)"
python3 - <<'PY'
import json

with open("log.jsonl") as file:
    steps = [e for e in map(json.loads, file) if "mfu" in e]
ratios = [e["mfu"] / e["tokens_per_s"] for e in steps]
assert len(steps) >= 2 and min(ratios) > 0 and max(ratios) < min(ratios) * (1 + 1e-9), steps
PY
