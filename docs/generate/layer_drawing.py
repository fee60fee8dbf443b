"""Arrange boxes in rows and draw them as SVG, with as few crossing arrows as sweeps can find."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape

Graph = dict[str, set[str]]
"""Name -> the names below it that an arrow leads to."""

CHARACTER: Final = 7.83  # width in the widest of the usual monospaced fonts at 13 px
BOX_HEIGHT: Final = 30
ROW_HEIGHT: Final = 74
GAP: Final = 18
BEND_WIDTH: Final = 4
MARGIN: Final = 16
BAND_TITLE: Final = 26
SWEEPS: Final = 100

STYLE: Final = """
    .page { fill: #ffffff }
    .band { fill: #f3f4f6 }
    text { font-family: monospace; font-size: 13px; fill: #111827 }
    .name { text-anchor: middle }
    .title { font-weight: bold; fill: #4b5563 }
    .box { fill: #ffffff; stroke: #6b7280 }
    .opened { fill: #dbeafe; stroke: #2563eb }
    .arrow { fill: none; stroke: #6b7280; stroke-width: 1.2 }
    .head { fill: #6b7280 }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117 }
      .band { fill: #161b22 }
      text { fill: #e6edf3 }
      .title { fill: #9ca3af }
      .box { fill: #21262d; stroke: #8b949e }
      .opened { fill: #12305c; stroke: #58a6ff }
      .arrow { stroke: #8b949e }
      .head { fill: #8b949e }
    }
"""
DESCRIPTION: Final = (
    "Each box is a folder. An arrow leads from a folder to one that it imports; "
    "an arrow that a longer path implies is left out."
)


@dataclass(slots=True)
class Node:
    """A box, or without a label a bend: the place where a long arrow passes a row."""

    row: int
    label: str = ""
    x: float = 0.0  # of its center
    above: list["Node"] = field(default_factory=list)
    below: list["Node"] = field(default_factory=list)
    opened: bool = False

    @property
    def width(self) -> float:
        return CHARACTER * len(self.label) + 20 if self.label else BEND_WIDTH


def draw(rows: Mapping[str, int], arrows: Graph, packages: Sequence[str]) -> str:
    """Return the SVG. ``rows``: the row of each box, 0 is the lowest.

    ``packages``: from top to bottom; each gets a band of rows of its own.
    """
    nodes = {name: _box(name, row) for name, row in rows.items()}
    grid: list[list[Node]] = [[] for _ in range(max(rows.values()) + 1)]
    for name in sorted(nodes):
        grid[nodes[name].row].append(nodes[name])
    for name in sorted(arrows):
        for target in sorted(arrows[name]):
            _connect(nodes[name], nodes[target], grid)
    _sort_rows(grid)
    _place(grid)
    return "\n".join(_svg(grid, _bands(rows, packages)))


def _box(name: str, row: int) -> Node:
    package, _, label = name.partition(".")
    return Node(row, label or package, opened="." in label)


def _connect(source: Node, target: Node, grid: list[list[Node]]) -> None:
    """Connect two boxes, with a bend in each row between them."""
    upper = source
    for row in range(source.row - 1, target.row, -1):
        bend = Node(row)
        grid[row].append(bend)
        _link(upper, bend)
        upper = bend
    _link(upper, target)


def _link(upper: Node, lower: Node) -> None:
    upper.below.append(lower)
    lower.above.append(upper)


def _sort_rows(grid: list[list[Node]]) -> None:
    """Sort each row by the mean place of its neighbors; keep the order with fewest crossings."""
    best = [list(row) for row in grid]
    least = _crossings(grid)
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for row in reversed(grid) if downwards else grid:
            places = {id(one): at for each in grid for at, one in enumerate(each)}
            means = {}
            for one in row:
                neighbors = one.above if downwards else one.below
                at = [places[id(other)] for other in neighbors] or [places[id(one)]]
                means[id(one)] = sum(at) / len(at)
            row.sort(key=lambda one: means[id(one)])
        if (count := _crossings(grid)) < least:
            least, best = count, [list(row) for row in grid]
    grid[:] = best


def _crossings(grid: list[list[Node]]) -> int:
    total = 0
    for row in grid[1:]:
        lower = {id(one): at for at, one in enumerate(grid[row[0].row - 1])} if row else {}
        ends = [sorted(lower[id(one)] for one in upper.below) for upper in row]
        flat = [place for each in ends for place in each]
        total += sum(a > b for at, a in enumerate(flat) for b in flat[at + 1 :])
    return total


def _place(grid: list[list[Node]]) -> None:
    """Set ``x``: each node near the mean of its neighbors, without overlaps."""
    for row in grid:
        _spread(row, [0.0] * len(row))
    for sweep in range(SWEEPS):
        for row in grid if sweep % 2 else reversed(grid):
            _spread(row, [_mean_x(one) for one in row])
    left = min(one.x - one.width / 2 for row in grid for one in row)
    for row in grid:
        for one in row:
            one.x = round(one.x - left + 2 * MARGIN, 1)


def _mean_x(node: Node) -> float:
    neighbors = [*node.above, *node.below]
    # A bend counts more for a bend: long arrows become straight.
    weights = [1 if node.label or one.label else 12 for one in neighbors]
    total = sum(weight * one.x for weight, one in zip(weights, neighbors, strict=True))
    return total / sum(weights) if weights else node.x


def _spread(row: Sequence[Node], desired: Sequence[float]) -> None:
    """Set ``x`` in this order as near to the desired places as the widths allow.

    This is isotonic regression: after subtracting each node's offset in a row without gaps, the
    places must not decrease, and neighbors that would are pooled at their mean.
    """
    offsets = [0.0] * len(row[:1])
    for one, after in pairwise(row):
        offsets.append(offsets[-1] + (one.width + after.width) / 2 + GAP)
    pools: list[tuple[float, int]] = []
    for place, offset in zip(desired, offsets, strict=True):
        mean, size = place - offset, 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean = (before * count + mean * size) / (count + size)
            size += count
        pools.append((mean, size))
    means = [mean for mean, size in pools for _ in range(size)]
    for one, mean, offset in zip(row, means, offsets, strict=True):
        one.x = mean + offset


def _bands(rows: Mapping[str, int], packages: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the title, the lowest and the highest row of each package."""
    found = []
    for package in packages:
        own = [row for name, row in rows.items() if name.split(".")[0] == package]
        found.append((package, min(own), max(own)))
    return found


def _svg(grid: list[list[Node]], bands: Sequence[tuple[str, int, int]]) -> Iterator[str]:
    tops, height = _row_tops(len(grid), bands)
    width = max(one.x + one.width / 2 for row in grid for one in row) + 2 * MARGIN
    title = f"Import layers of {' and '.join(package for package, _, _ in bands)}"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        'role="img" aria-labelledby="title desc">'
    )
    yield f'  <title id="title">{escape(title)}</title>'
    yield f'  <desc id="desc">{escape(DESCRIPTION)}</desc>'
    yield f"  <style>{STYLE}  </style>"
    yield f'  <rect class="page" width="{width:.0f}" height="{height:.0f}"/>'
    for package, lowest, highest in bands:
        top = tops[highest] - BAND_TITLE
        band_height = tops[lowest] + BOX_HEIGHT + MARGIN - top
        yield (
            f'  <rect class="band" x="{MARGIN / 2:g}" y="{top:g}" width="{width - MARGIN:.0f}" '
            f'height="{band_height:g}" rx="6"/>'
        )
        yield f'  <text class="title" x="{MARGIN}" y="{top + 18:g}">{escape(package)}</text>'
    nodes = [one for row in reversed(grid) for one in row]
    for one in nodes:
        if one.label:
            yield from _arrows(one, tops)
    for one in nodes:
        if one.label:
            yield from _box_svg(one, tops[one.row])
    yield "</svg>\n"


def _row_tops(count: int, bands: Sequence[tuple[str, int, int]]) -> tuple[list[float], float]:
    """Return the y of each row's top, and the height of the picture."""
    tops = [0.0] * count
    y = float(MARGIN / 2)
    for _, lowest, highest in bands:
        y += BAND_TITLE
        for row in range(highest, lowest - 1, -1):
            tops[row] = y
            y += ROW_HEIGHT
        y += MARGIN + BOX_HEIGHT - ROW_HEIGHT + MARGIN
    return tops, y - MARGIN / 2


def _box_svg(node: Node, top: float) -> Iterator[str]:
    kind = "box opened" if node.opened else "box"
    left = node.x - node.width / 2
    yield (
        f'  <rect class="{kind}" x="{left:.1f}" y="{top:g}" width="{node.width:.1f}" '
        f'height="{BOX_HEIGHT}" rx="4"/>'
    )
    yield (f'  <text class="name" x="{node.x:.1f}" y="{top + 19:g}">{escape(node.label)}</text>')


def _arrows(box: Node, tops: Sequence[float]) -> Iterator[str]:
    """Yield the arrows that begin at a box."""
    for first in box.below:
        upper, lower = box, first
        x = _port(box, box.below, first)
        y = tops[box.row] + BOX_HEIGHT
        path = f"M{x:.1f} {y:g}"
        while True:
            end = lower.x if not lower.label else _port(lower, lower.above, upper)
            bottom = tops[lower.row] - (6 if lower.label else 0)
            middle = (y + bottom) / 2
            path += f" C{x:.1f} {middle:g} {end:.1f} {middle:g} {end:.1f} {bottom:g}"
            x, y = end, bottom
            if lower.label:
                break
            y = tops[lower.row] + BOX_HEIGHT
            path += f" V{y:g}"
            upper, lower = lower, lower.below[0]
        yield f'  <path class="arrow" d="{path}"/>'
        yield f'  <path class="head" d="M{x - 4:.1f} {y:g}h8l-4 6z"/>'


def _port(box: Node, neighbors: Sequence[Node], neighbor: Node) -> float:
    """Return the x at which a box has the arrow to or from a neighbor: in the neighbors' order."""
    order = sorted(neighbors, key=lambda one: one.x)
    share = (order.index(neighbor) + 1) / (len(order) + 1)
    return box.x + (share - 0.5) * box.width
