"""The geometry of charts: the position of each bar, line and label, which templates draw as SVG.

No I/O. Positions are in SVG user units; the viewBox is ``width`` by ``HEIGHT``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

WIDE: Final = 960
NARROW: Final = 470
HEIGHT: Final = 220
LEFT: Final = 52  # width of the space for the labels of the value axis
BOTTOM: Final = 24  # height of the space for the labels of the time axis
TOP: Final = 10
PLOT_HEIGHT: Final = HEIGHT - TOP - BOTTOM
STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
MAX_BAR_WIDTH: Final = 72.0  # a chart with few buckets would otherwise have very wide bars
LABEL_WIDTH: Final = 48  # estimated width of one label of the time axis


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    slug: str
    title: str
    url: str


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """One SVG polyline. A missing value splits a series into several polylines."""

    points: str
    slug: str


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    slug: str
    title: str
    url: str


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    name: str
    title: str
    description: str
    width: int
    values: Sequence[Tick]
    times: Sequence[Tick]
    legend: Sequence[tuple[str, str]] = ()
    """For each series, the slug of its color and its label."""
    bars: Sequence[Bar] = ()
    lines: Sequence[Line] = ()
    dots: Sequence[Dot] = ()
    header: Sequence[str] = ()
    rows: Sequence[tuple[str, Sequence[Cell]]] = field(default_factory=list)
    """The chart's values as table rows: (row label, cells)."""

    height: int = HEIGHT
    empty: str = "No data."

    @property
    def is_empty(self) -> bool:
        return not self.bars and not self.lines and not self.dots


@dataclass(frozen=True, slots=True)
class Series:
    """One series of values, one per bucket. None is a bucket without a measurement; it is not 0."""

    slug: str
    label: str
    values: Sequence[float | None]
    titles: Sequence[str]
    urls: Sequence[str]


def axis_marks(most: float) -> list[float]:
    """Return 2 to 6 evenly spaced round values, from 0 up to at least ``most``."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in STEPS if power * factor >= rough)
    return [step * n for n in range(math.ceil(most / step - 1e-9) + 1)]


def stack_bars(
    series: Sequence[Series], width: int, format_value: Callable[[float], str]
) -> tuple[list[Bar], list[Tick]]:
    """Return stacked bars with the first series at the bottom, and the ticks of the value axis."""
    count = max((len(one.values) for one in series), default=0)
    heights = [sum(one.values[n] or 0 for one in series) for n in range(count)]
    marks = axis_marks(max(heights, default=0))
    wide = (width - LEFT) / max(1, count)
    gap = max(min(6.0, wide * 0.22), wide - MAX_BAR_WIDTH)
    bars: list[Bar] = []
    for n in range(count):
        under = 0.0
        for one in series:
            value = one.values[n] or 0
            if value > 0:
                tall = PLOT_HEIGHT * value / marks[-1]
                top = TOP + PLOT_HEIGHT - under - tall
                left = LEFT + n * wide + gap / 2
                place = (round(left, 2), round(top, 2), round(wide - gap, 2), round(tall, 2))
                bars.append(Bar(*place, one.slug, one.titles[n], one.urls[n]))
                under += tall
    return bars, _value_ticks(marks, format_value)


def draw_lines(
    series: Sequence[Series], width: int, format_value: Callable[[float], str]
) -> tuple[list[Line], list[Dot], list[Tick]]:
    """Return lines, dots and the ticks of the value axis; a missing value splits a line."""
    count = max((len(one.values) for one in series), default=0)
    marks = axis_marks(max((v for one in series for v in one.values if v is not None), default=0))
    wide = (width - LEFT) / max(1, count)
    lines: list[Line] = []
    dots: list[Dot] = []
    for one in series:
        run: list[tuple[float, float]] = []
        for n in range(count + 1):
            value = one.values[n] if n < count else None
            if value is None:
                if len(run) > 1:
                    lines.append(Line(" ".join(f"{x},{y}" for x, y in run), one.slug))
                run = []
                continue
            x = round(LEFT + (n + 0.5) * wide, 2)
            y = round(TOP + PLOT_HEIGHT * (1 - value / marks[-1]), 2)
            run.append((x, y))
            dots.append(Dot(x, y, one.slug, one.titles[n], one.urls[n]))
    return lines, dots, _value_ticks(marks, format_value)


def time_ticks(labels: Sequence[str], width: int) -> list[Tick]:
    """Return ticks for as many labels as fit. Buckets with equal labels share a centered tick."""
    wide = (width - LEFT) / max(1, len(labels))
    ticks: list[tuple[int, Tick]] = []  # (number of buckets with the label, tick)
    start = 0
    for label, run in groupby(labels):
        count = len(list(run))
        tick = Tick(round(LEFT + (start + count / 2) * wide, 2), label)
        if len(ticks) == 1 and ticks[0][0] < count and tick.at - ticks[0][1].at < LABEL_WIDTH:
            ticks = []  # drop the label of a partial first day: the next day's label would not fit
        if not ticks or tick.at - ticks[-1][1].at >= LABEL_WIDTH:
            ticks.append((count, tick))
        start += count
    return [tick for _, tick in ticks]


def _value_ticks(marks: Sequence[float], format_value: Callable[[float], str]) -> list[Tick]:
    return [
        Tick(round(TOP + PLOT_HEIGHT * (1 - mark / marks[-1]), 2), format_value(mark))
        for mark in marks
    ]
