"""What each rank holds and what it moves, by layout, as SVGs:

    python3 bench/layout_pictures.py holds > docs/layouts.svg
    python3 bench/layout_pictures.py moves > docs/layouts_step.svg"""
import sys

BLUE, LIGHT, ORANGE, GREY, LINE = "#4c78a8", "#dbe6f1", "#f58518", "#eef2f7", "#8aa"
KINDS = ("parameters", "gradients", "moments", "samples", "activations")
LABELS = ("weights", "grads", "Adam", "rows", "width")


def part(i, n):
    return i / n, (i + 1) / n


def text(x, y, words, **style):
    style = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{words}</text>'


def box(x, y, width, height, fill, **style):
    style = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in {"stroke": LINE, **style}.items())
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{style}/>'


def whole(rank):
    return 0, 1


def quarter(rank):
    return part(rank, 4)


def half(rank):
    return part(rank % 2, 2)


def group(rank):
    return part(rank // 2, 2)


def layout(mesh, words, has, passing=()):
    """has: for each kind, the range that a rank of four has. passing: kinds whose rest is there for a moment, block by
    block."""
    return mesh, words, [{kind: of(rank) for kind, of in zip(KINDS, has)} for rank in range(4)], passing


HOLDS = [
    layout("data=4", "a copy of everything for each rank; a part of the batch", (whole, whole, whole, quarter, whole)),
    layout("shard=4 --shard-stage 1", "a part of the batch, and of moments and master copies",
           (whole, whole, quarter, quarter, whole)),
    layout("shard=4 --shard-stage 2", "of gradients too: they are whole until their reduce_scatter",
           (whole, quarter, quarter, quarter, whole), ("gradients",)),
    layout("shard=4", "stage 3: of parameters too, gathered block by block",
           (quarter, quarter, quarter, quarter, whole), ("parameters", "gradients")),
    layout("data=2,shard=2", "ranks 0 and 1 together have what ranks 2 and 3 have (HSDP)",
           (half, half, half, quarter, whole), ("parameters", "gradients")),
    layout("tensor=4", "the same rows; a part of the heads and of the feed-forward width",
           (quarter, quarter, quarter, whole, quarter)),
    layout("data=2,tensor=2", "half of the rows, half of the width", (half, half, half, group, half)),
]


def draw_holds():
    column, gap, height, left, top, between = 30, 6, 74, 12, 46, 150
    rank_width = len(KINDS) * (column + gap) + 18
    small = dict(text_anchor="middle", font_size=9, fill="#555")
    body = []
    for row, (mesh, words, ranks, passing) in enumerate(HOLDS):
        y = top + row * between
        body.append(text(left, y - 8, mesh, font_weight="bold") + text(left + 8 * len(mesh) + 20, y - 8, words))
        for r, has in enumerate(ranks):
            x = left + r * rank_width
            body.append(text(x, y + height + 28, f"rank {r}", font_weight="bold"))
            for kind, label in zip(KINDS, LABELS):
                first, last = has[kind]
                colour = ORANGE if kind in ("samples", "activations") else BLUE
                body.append(box(x, y, column, height, LIGHT if kind in passing else "#fff", stroke_dasharray="3,2"))
                body.append(box(x, y + first * height, column, (last - first) * height, colour))
                body.append(text(x + column / 2, y + height + 13, label, **small))
                x += column + gap
    y = top + len(HOLDS) * between
    legend = (("what the rank stores", BLUE), ("there for a moment, block by block", LIGHT),
              ("rows of the batch, width of the activations", ORANGE))
    for i, (words, colour) in enumerate(legend):
        body.append(box(left + 235 * i, y, 14, 14, colour) + text(left + 235 * i + 20, y + 12, words))
    return left + 4 * rank_width + 20, y + 30, body


# What moves in a step: of each layout, lines of pieces (from, to, words), in percent of a step.
MOVES = [
    ("data", [("compute", [(0, 34, "forward"), (34, 100, "backward"), (104, 112, "update")]),
              ("link", [(52, 68, "all_reduce"), (72, 88, "all_reduce"), (90, 103, "all_reduce")])]),
    ("shard, stages 1 and 2", [
        ("compute", [(0, 34, "forward"), (34, 100, "backward"), (103, 109, "update")]),
        ("link", [(52, 60, "scatter"), (72, 80, "scatter"), (90, 103, "scatter"), (109, 117, "gather")])]),
    ("shard, stage 3", [
        ("compute", [(3, 14, "block 0"), (14, 25, "block 1"), (25, 36, "block 2"), (36, 58, "block 2"),
                     (58, 80, "block 1"), (80, 101, "block 0"), (109, 115, "update")]),
        ("link", [(0, 3, ""), (3, 11, "gather 1"), (14, 22, "gather 2"), (36, 44, "gather 1"), (58, 66, "gather 0"),
                  (66, 74, "scatter 2"), (80, 88, "scatter 1"), (101, 109, "scatter 0")])]),
    ("tensor", [
        ("compute", [(3, 16, "attention"), (22, 36, "feed-forward"), (45, 66, "feed-forward"), (75, 98, "attention"),
                     (104, 110, "update")]),
        ("link", [(0, 3, ""), (16, 22, "both"), (36, 45, "both"), (66, 75, "both"), (98, 104, "scatter")])]),
]


def draw_moves():
    left, scale, height, top, between = 130, 6.6, 24, 40, 86
    body = []
    for row, (name, lines) in enumerate(MOVES):
        y = top + row * between
        body.append(text(10, y - 6, name, font_weight="bold"))
        for line, (what, pieces) in enumerate(lines):
            at, colour = y + line * (height + 4), GREY if what == "compute" else ORANGE
            body.append(text(10, at + 16, what))
            for first, last, words in pieces:
                body.append(box(left + first * scale, at, (last - first) * scale, height, colour))
                body.append(text(left + (first + last) / 2 * scale, at + 16, words, text_anchor="middle", font_size=10))
    y = top + len(MOVES) * between
    body.append(text(left, y, "time →", fill="#555"))
    return left + 118 * scale, y + 14, body


def main():
    draw = {"holds": draw_holds, "moves": draw_moves}.get(sys.argv[1] if len(sys.argv) == 2 else "")
    if not draw:
        sys.exit("usage: python3 bench/layout_pictures.py holds|moves > picture.svg")
    width, height, body = draw()
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
          'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>')
    print("\n".join(body))
    print("</svg>")


main()
