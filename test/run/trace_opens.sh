#!/usr/bin/env bash
# trace_opens.sh - another JSON parser reads from a trace file what was recorded: names, tracks, times by the common
# clock; and the events of a training run have telling names.
set -eu
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$BUILD_DIR/test_trace" "$work"
python3 - "$work/trace.json" <<'PY'
import json
import sys

with open(sys.argv[1], encoding="utf-8", errors="strict") as file:
    trace = json.load(file)
named = {(e["name"], e["pid"], e["tid"]): e["args"] for e in trace["traceEvents"] if e["ph"] == "M"}
assert named == {
    ("process_name", 0, 0): {"name": "rank 0"}, ("process_name", 1, 0): {"name": "rank 1, host b"},
    ("process_sort_index", 0, 0): {"sort_index": 0}, ("process_sort_index", 1, 0): {"sort_index": 1},
    ("thread_name", 0, 0): {"name": "compute"}, ("thread_name", 0, 3): {"name": 'communication "ring"'},
    ("thread_name", 1, 0): {"name": "compute"},
}, named
events = [e for e in trace["traceEvents"] if e["ph"] != "M"]
assert all(e["ph"] == "X" and set(e) - {"args"} == {"ph", "name", "cat", "pid", "tid", "ts", "dur"} for e in events)
got = [(e["name"], e["cat"], e["pid"], e["tid"], e["ts"], e["dur"], e.get("args")) for e in events]
# Time 0 is rank 1's first step, which began half a millisecond before rank 0's kernel.
assert got == [
    ('conv1\\weight "gradient"\n', "kernel", 0, 0, 500.0, 1000.0, None),
    ("all_reduce bucket 0", "collective", 0, 3, 1000.0, 2000.0, {"bytes": 26214400}),
    ("größe \ufffd\ufffd\ufffd end", "save", 0, 0, 3500.0, 0.5, None),
    ("step", "step", 1, 0, 0.0, 500.0, None),
    ("step", "step", 1, 0, 1e6, 500.0, None),
    ("step", "step", 1, 0, 2e6, 500.0, None),
], got
other = trace["otherData"]
assert other["ranks"] == 2 and other["dropped_events"] == 2 and other["producer"].startswith("lockstep "), other
assert other["overlap_percent"] == 25.0 and other["overlap_percent_by_rank"] == {"0": 25.0, "1": None}, other
print(len(events), "events")
PY

# Collectives of a step: the operation, its data, and of a bucket the number that `plan` prints and its size.
cd "$work"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_JOB LOCKSTEP_TOKEN
train() { # train FILE RANKS OPTIONS...
    local file=$1 ranks=$2
    shift 2
    "$LOCKSTEP" train -n "$ranks" --threads 1 --steps 3 --eval-every -1 --batch 12 --trace "$file" "$@" > out.txt 2>&1 \
        || { cat out.txt >&2; exit 1; }
}
image=synthetic:3x32x32,count=64
train buckets.json 2 --model cnn --data $image --state replicated
"$LOCKSTEP" plan -n 2 --state replicated --threads 1 --batch 12 --model cnn --data $image |
    grep -oE 'bucket [0-9]+: all_reduce of [0-9]+' > plan.txt
train norm.json 2 --model resnet20 --data synthetic:3x8x8,count=64 --sync-batchnorm --state replicated
train leaves.json 3 --model resnet20 --data synthetic:3x8x8,count=64 --sync-batchnorm --reproducible --state replicated
train shared.json 3 --model cnn --data $image --state shared # more ranks and threads than cores: nothing overlaps
train clipped.json 3 --model cnn --data $image --state shared --clip 1
python3 - <<'PY'
import json
import re


def collectives(path):
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    return {(e["name"], e["args"]["bytes"]) for e in events if e.get("cat") == "collective"}


def size(count):
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def buckets(found, how):
    return {name for name, count in found if re.fullmatch(rf"{how} bucket [0-9]+, {re.escape(size(count))}", name)}


with open("plan.txt") as file:
    planned = re.findall(r"bucket (\d+): all_reduce of (\d+)", file.read())
assert len(planned) >= 2, planned
found = collectives("buckets.json")
named = {f"all_reduce bucket {i}, {size(int(count))}" for i, count in planned}
assert buckets(found, "all_reduce") == named, (found, planned)
small = {"all_gather metrics"}
for path, how, more in (
    ("buckets.json", "all_reduce", set()),
    ("norm.json", "all_reduce", {"all_reduce batch norm sums"}),
    ("leaves.json", "all_to_all and all_gather", {"all_gather batch norm sums"}),
):
    found = collectives(path)
    assert buckets(found, how), (path, found)
    assert {name for name, _ in found} - buckets(found, how) == small | more, (path, found)


def by_step(path):
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    steps = [e for e in events if e.get("cat") == "step" and e["pid"] == 0]
    names = [e["name"] for e in events if e.get("cat") == "collective" and e["pid"] == 0]
    return len(steps), [re.sub(" bucket.*", "", name) for name in names]


# Ranks that share their state: every collective of a step is a wait for all ranks.
for path, waits in (
    ("shared.json", ["all_gather metrics", "barrier update"]),
    ("clipped.json", ["all_gather metrics", "barrier norm", "barrier update"]),
):
    steps, names = by_step(path)
    assert steps > 0 and set(names) - {"reduce_scatter"} == set(waits), (path, names)
    assert all(names.count(one) == steps for one in waits), (path, steps, names)
PY

# bench/trace_picture.py draws a step of a trace: the one that is named, or one by itself.
for given in "" 0 -1; do
    # shellcheck disable=SC2086
    python3 "$SOURCE_DIR/bench/trace_picture.py" buckets.json $given > picture.svg ||
        { echo "trace_picture.py buckets.json $given fails" >&2; exit 1; }
    python3 -c 'import sys, xml.dom.minidom as m
assert len(m.parse("picture.svg").getElementsByTagName("rect")) > 5, "no rectangles"'
done
if python3 "$SOURCE_DIR/bench/trace_picture.py" buckets.json 3 > picture.svg 2> err.txt; then
    echo "a step that was not recorded is drawn" >&2
    exit 1
fi
grep -q 'STEP 3: the trace has 3 steps' err.txt || { cat err.txt >&2; exit 1; }

# Of a pipeline, each stage has its runs of every micro-batch, what it sends, and the picture above which plan's is.
gpt="--model gpt --layers 2 --width 32 --heads 2 --context 64 --batch 8 --data synthetic-tokens"
# shellcheck disable=SC2086
"$LOCKSTEP" train --mesh pipeline=2 --micro-batches 4 --pipeline-schedule zero-bubble $gpt --steps 4 --threads 1 \
    --trace stages.json > /dev/null
# shellcheck disable=SC2086
"$LOCKSTEP" plan --mesh pipeline=2 --micro-batches 4 --pipeline-schedule zero-bubble $gpt \
    --schedule-picture plan.svg > /dev/null
python3 "$SOURCE_DIR/bench/trace_picture.py" --predicted plan.svg stages.json > picture.svg
python3 - <<'PY'
import json, xml.dom.minidom
events = [e for e in json.load(open("stages.json"))["traceEvents"] if e["ph"] == "X"]
steps = sum(e["cat"] == "step" and e["pid"] == 0 for e in events)
for rank in (0, 1):
    runs = [e["name"] for e in events if e["cat"] == "run" and e["pid"] == rank]
    for name in [f"{kind} {i}" for kind in ("forward", "backward", "weight gradient") for i in range(4)]:
        assert runs.count(name) == steps, (rank, name, steps, runs)
    sends = [e for e in events if e["cat"] == "collective" and e["pid"] == rank and e["name"].startswith("send to")]
    assert len(sends) >= 4 * steps and all(0 <= e["dur"] < 60e6 for e in sends), (rank, sends[:3])
picture = xml.dom.minidom.parse("picture.svg")
assert len(picture.getElementsByTagName("svg")) == 2 and len(picture.getElementsByTagName("rect")) > 50
PY
