#!/usr/bin/env bash
# trace_opens.sh - another reader of JSON sees in a trace's file what was recorded: names, places, times by the common clock.
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
