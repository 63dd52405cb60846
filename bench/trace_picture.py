"""One step of a trace (lockstep train --trace FILE) as an SVG:

    python3 bench/trace_picture.py [--predicted PLAN.svg] FILE [STEP] > picture.svg

STEP counts the recorded steps from 0, negative numbers from the end; without it, the one in the middle, which is past
the first steps' set-up. Of a pipeline, a rank's row has its forward and backward runs with the numbers of their
micro-batches; in grey, it waits for another stage. --predicted: above it, the picture that lockstep plan
--schedule-picture has drawn of the same step."""
import html, json, re, sys
usage = "usage: python3 bench/trace_picture.py [--predicted PLAN.svg] FILE [STEP] > picture.svg"
predicted = None
if len(sys.argv) > 2 and sys.argv[1] == "--predicted":
    try:
        predicted = open(sys.argv[2]).read()
        predicted = predicted[predicted.index("<svg"):]
    except (OSError, ValueError) as error:
        sys.exit(f"{sys.argv[2]}: not a picture of `lockstep plan --schedule-picture`: {error}")
    del sys.argv[1:3]
if len(sys.argv) not in (2, 3):
    sys.exit(usage)
try:
    events = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X"]
except (OSError, ValueError, KeyError, TypeError) as error:
    sys.exit(f"{sys.argv[1]}: not a trace of `lockstep train --trace`: {error}")
ranks = sorted({e["pid"] for e in events})
steps = sorted((e for e in events if e["name"] == "step" and e["pid"] == ranks[0]), key=lambda e: e["ts"])
if not steps:
    sys.exit(f"{sys.argv[1]} has no step")
try:
    step = steps[int(sys.argv[2]) if len(sys.argv) == 3 else len(steps) // 2]
except (IndexError, ValueError):
    sys.exit(f"STEP {sys.argv[2]}: the trace has {len(steps)} steps: 0 to {len(steps) - 1}")
begin, end = step["ts"], step["ts"] + step["dur"]
left, width, row, colours = 110, 860, 22, {"kernel": "#4c78a8", "collective": "#f58518"}
staged = any(e.get("cat") == "run" for e in events)
if staged:
    left, width = 190, 1080  # as cli/schedule_picture.c
scale, rows, body = width / (end - begin), [], []
for rank in ranks:
    for kind in ("run" if staged else "kernel", "collective"):
        rows.append((rank, kind))
run_colours = {"forward": "#5b8def", "backward": "#e0893f", "weight gradient": "#5aa469"}


def draw_runs(rank, y):
    """The runs of a stage; what they wait for is grey."""
    mine = [e for e in events if e["pid"] == rank and begin <= e["ts"] < end]
    for e in sorted((e for e in mine if e.get("cat") in ("run", "wait")), key=lambda e: e["cat"]):
        x, w = left + (e["ts"] - begin) * scale, (min(end, e["ts"] + e["dur"]) - e["ts"]) * scale
        kind, _, number = e["name"].rpartition(" ")
        fill = "#d8d8d8" if e["cat"] == "wait" else run_colours.get(kind, "#888")
        if w < 0.2: continue
        body.append(f'<rect x="{x:.1f}" y="{y}" width="{w:.2f}" height="{row - 5}" fill="{fill}" stroke="#fff" '
                    f'stroke-width=".4"><title>{html.escape(e["name"])}: {e["dur"] / 1000:.3f} ms</title></rect>')
    for e in mine:  # above what waits
        if e.get("cat") == "run" and e["dur"] * scale >= 14:
            x = left + (e["ts"] + e["dur"] - begin) * scale - 3
            body.append(f'<text x="{x:.1f}" y="{y + 12}" text-anchor="end" fill="#fff">{e["name"].split()[-1]}</text>')


for line, (rank, kind) in enumerate(rows):
    y = 24 + line * row + rank * 8
    body.append(f'<text x="4" y="{y + 13}">rank {rank} {"link" if kind == "collective" else "compute"}</text>')
    if kind == "run":
        draw_runs(rank, y)
        continue
    for e in events:
        if e["pid"] != rank or e.get("cat") != kind or e["ts"] + e["dur"] < begin or e["ts"] > end: continue
        x, w = max(0, e["ts"] - begin) * scale, max(0.4, (min(end, e["ts"] + e["dur"]) - max(begin, e["ts"])) * scale)
        body.append(f'<rect x="{left + x:.1f}" y="{y}" width="{w:.2f}" height="{row - 5}" '
                    f'fill="{colours[kind]}" stroke="#fff" stroke-width=".3"/>')
        if w > 90:
            name = html.escape(e["name"].split("=")[-1].split("(")[0].strip()[:int(w / 6.5)])
            body.append(f'<text x="{left + x + 4:.1f}" y="{y + 12}" fill="#fff">{name}</text>')
height = 24 + len(rows) * row + len(ranks) * 8 + 22
# ms between at most 20 marks
every = next(m for m in (k * 10**n for n in range(9) for k in (1, 2, 5)) if 20 * m >= (end - begin) / 1000)
for ms in range(0, int((end - begin) / 1000) + 1, every):
    x = f"{left + ms * 1000 * scale:.1f}"
    body.append(f'<line x1="{x}" x2="{x}" y1="18" y2="{height - 18}" stroke="#bbb" stroke-width=".5"/>'
                f'<text x="{x}" y="{height - 6}" text-anchor="middle">{ms} ms</text>')
above, all_width = 0, left + width + 20
if predicted:
    size = re.match(r'<svg[^>]*?width="([0-9.]+)"[^>]*?height="([0-9.]+)"', predicted)
    if not size:
        sys.exit("the predicted picture has no width and height")
    all_width, above = max(all_width, float(size[1])), float(size[2])
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{all_width:g}" height="{above + height:g}" '
      f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>')
if predicted:
    print(predicted)
print(f'<g transform="translate(0 {above:g})"><text x="4" y="12">{"measured, " if predicted else ""}'
      f'{(end - begin) / 1000:.3f} ms</text>{"".join(body)}</g></svg>')
