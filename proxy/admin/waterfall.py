"""A session drawn as a waterfall: a bar for each request, long silences cut short, on its lane.

Places are per cent of the width, so that the page's own SVG needs no script and no inline style.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from proxy.models import Exchange

from .figures import cost_of, dollars, duration, short_count
from .session_shape import Lane, Step
from .summary import tone_of

LANE_HEIGHT: Final = 26
BAR_HEIGHT: Final = 14
LONGEST_GAP_MS: Final = 20_000
"""A longer silence is drawn as this long, and says how long it was."""
LEAST_WIDTH: Final = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """``wait``: how much of it passed before the first content."""

    step: Step
    x: str
    y: int
    width: str
    wait: str
    tone: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A silence that was cut short."""

    x: str
    length: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A curve over the requests, in a box of 100 by 100."""

    label: str
    points: str
    last: str
    most: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    lanes: Sequence[Lane]
    bars: Sequence[Bar]
    gaps: Sequence[Gap]
    lines: Sequence[Line]
    height: int
    lane_height: int = LANE_HEIGHT
    bar_height: int = BAR_HEIGHT


def draw(steps: Sequence[Step], lanes: Sequence[Lane]) -> Waterfall:
    scale = _Scale([step.row for step in steps])
    return Waterfall(
        lanes=lanes,
        bars=[_bar(step, scale) for step in steps],
        gaps=scale.gaps,
        lines=_lines(steps, scale),
        height=max(1, len(lanes)) * LANE_HEIGHT,
    )


def _length_ms(row: Exchange) -> float:
    return max(0.0, row.total_ms or 0.0)


class _Scale:
    """Milliseconds since the first request -> per cent, silences cut short."""

    def __init__(self, rows: Sequence[Exchange]) -> None:
        self._start = rows[0].created if rows else None
        self._cuts: list[tuple[float, float]] = []  # from when on, how much is taken away
        gaps: list[tuple[float, float]] = []
        end = taken = 0.0
        for row in rows:
            at = self._since(row)
            silent = at - end
            if end and silent > LONGEST_GAP_MS:
                taken += silent - LONGEST_GAP_MS
                gaps.append((at - taken - LONGEST_GAP_MS / 2, silent))
                self._cuts.append((at, taken))
            end = max(end, at + _length_ms(row))
        self._whole = max(1.0, end - taken)
        self.gaps = [
            Gap(x=f"{100 * at / self._whole:.3f}%", length=duration(silent)) for at, silent in gaps
        ]

    def _since(self, row: Exchange) -> float:
        return (row.created - self._start).total_seconds() * 1000 if self._start else 0.0

    def place(self, row: Exchange) -> float:
        at = self._since(row)
        taken = max((taken for start, taken in self._cuts if at >= start), default=0.0)
        return 100 * (at - taken) / self._whole

    def width(self, ms: float) -> float:
        return 100 * ms / self._whole


def _bar(step: Step, scale: _Scale) -> Bar:
    row = step.row
    tone, word = tone_of(row)
    length = _length_ms(row)
    width = max(LEAST_WIDTH, scale.width(length))
    first = min(length, row.ttft_ms if row.ttft_ms is not None else length)
    x = min(scale.place(row), 100 - width)
    return Bar(
        step=step,
        x=f"{x:.3f}%",
        y=step.lane.number * LANE_HEIGHT + (LANE_HEIGHT - BAR_HEIGHT) // 2,
        width=f"{width:.3f}%",
        wait=f"{width * (first / length if length else 1):.3f}%",
        tone=tone,
        title=f"#{step.number} {row.created:%H:%M:%S}, {word}: {duration(row.total_ms)}, "
        f"{cost_of(row)}, {short_count(row.output_tokens)} out",
    )


def _lines(steps: Sequence[Step], scale: _Scale) -> list[Line]:
    """What it cost so far, and how much was sent each time on the main lane."""
    costs = [(scale.place(step.row), float(step.total_nanousd)) for step in steps]
    sent = [
        (scale.place(step.row), float(step.context))
        for step in steps
        if step.lane.kind == "main" and step.context is not None
    ]
    lines = []
    if any(value for _, value in costs):
        last = dollars(round(costs[-1][1]))
        lines.append(Line(label="Cost so far", points=_points(costs), last=last, most=last))
    if len(sent) > 1:
        most = short_count(round(max(value for _, value in sent)))
        last = short_count(round(sent[-1][1]))
        lines.append(Line(label="Context, tokens", points=_points(sent), last=last, most=most))
    return lines


def _points(values: Sequence[tuple[float, float]]) -> str:
    """A staircase: each value holds until the next one."""
    top = max(value for _, value in values) or 1.0
    points = []
    height = 100.0
    for x, value in values:
        points.append(f"{x:.2f},{height:.2f}")
        height = 100 - 96 * value / top
        points.append(f"{x:.2f},{height:.2f}")
    return " ".join([*points, f"100,{height:.2f}"])
