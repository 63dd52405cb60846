"""One step of a trace (lockstep train --trace FILE) as an SVG: python3 bench/trace_picture.py FILE STEP > picture.svg"""
import json, sys
trace, number = json.load(open(sys.argv[1])), int(sys.argv[2])
events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
ranks = sorted({e["pid"] for e in events})
step = sorted((e for e in events if e["pid"] == 0 and e["name"] == "step"), key=lambda e: e["ts"])[number]
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
        body.append(f'<rect x="{left + x:.1f}" y="{y}" width="{w:.2f}" height="{row - 5}" fill="{colours[kind]}" stroke="#fff" stroke-width=".3"/>')
        if w > 90: body.append(f'<text x="{left + x + 4:.1f}" y="{y + 12}" fill="#fff">{e["name"].split("=")[-1].split("(")[0].strip()[:int(w / 6.5)]}</text>')
height = 24 + len(rows) * row + len(ranks) * 8 + 22
for ms in range(0, int((end - begin) / 1000) + 1, 20):
    body.append(f'<line x1="{left + ms * 1000 * scale:.1f}" x2="{left + ms * 1000 * scale:.1f}" y1="18" y2="{height - 18}" stroke="#bbb" stroke-width=".5"/>'
                f'<text x="{left + ms * 1000 * scale:.1f}" y="{height - 6}" text-anchor="middle">{ms} ms</text>')
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{height}" font-family="sans-serif" font-size="11">'
      f'<rect width="100%" height="100%" fill="#fff"/>{"".join(body)}</svg>')
