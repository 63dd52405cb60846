"""One step of a trace (lockstep train --trace FILE) as an SVG: python3 bench/trace_picture.py FILE [STEP] > picture.svg

STEP counts the recorded steps from 0, negative numbers from the end; without it, the one in the middle, which is past
the first steps' set-up."""
import html, json, sys
if len(sys.argv) not in (2, 3):
    sys.exit("usage: python3 bench/trace_picture.py FILE [STEP] > picture.svg")
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
scale, rows, body = width / (end - begin), [], []
for rank in ranks:
    for kind in ("kernel", "collective"):
        rows.append((rank, kind))
for line, (rank, kind) in enumerate(rows):
    y = 24 + line * row + rank * 8
    body.append(f'<text x="4" y="{y + 13}">rank {rank} {"compute" if kind == "kernel" else "link"}</text>')
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
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{height}" font-family="sans-serif" font-size="11">'
      f'<rect width="100%" height="100%" fill="#fff"/>{"".join(body)}</svg>')
