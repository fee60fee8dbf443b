"""Charts as values: where each bar, line and label stands. The templates draw them as SVG.

Pure: numbers in, frozen geometry out, in user units of a drawing ``width`` by ``HEIGHT``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

WIDE: Final = 960
NARROW: Final = 470
HEIGHT: Final = 220
LEFT: Final = 52  # room for the labels of the values
BOTTOM: Final = 24  # and for those of the times
TOP: Final = 10
PLOT_HEIGHT: Final = HEIGHT - TOP - BOTTOM
STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
WIDEST: Final = 72.0  # of a bar: few buckets make no slabs
LABEL: Final = 48  # of a time: one in so many units fits


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
    """One stroke; where a value is missing, the line is broken into several."""

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
    """Slug of the colour, and whose it is."""
    bars: Sequence[Bar] = ()
    lines: Sequence[Line] = ()
    dots: Sequence[Dot] = ()
    header: Sequence[str] = ()
    rows: Sequence[tuple[str, Sequence[Cell]]] = field(default_factory=list)
    """The same as a table: a label, then its cells."""

    height: int = HEIGHT
    empty: str = "Nothing to draw."

    @property
    def is_empty(self) -> bool:
        return not self.bars and not self.lines and not self.dots


@dataclass(frozen=True, slots=True)
class Series:
    """One colour. ``values`` None: nothing was measured in that bucket, which is not 0."""

    slug: str
    label: str
    values: Sequence[float | None]
    titles: Sequence[str]
    urls: Sequence[str]


def scale_of(most: float) -> list[float]:
    """Round marks from 0 to at or above the greatest value, 2 to 5 of them."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * one for one in STEPS if power * one >= rough)
    return [step * n for n in range(math.ceil(most / step - 1e-9) + 1)]


def stacked(
    series: Sequence[Series], width: int, wording: Callable[[float], str]
) -> tuple[list[Bar], list[Tick]]:
    """Bars on top of each other, the first series at the bottom; and the marks of the values."""
    count = max((len(one.values) for one in series), default=0)
    heights = [sum(one.values[n] or 0 for one in series) for n in range(count)]
    marks = scale_of(max(heights, default=0))
    wide = (width - LEFT) / max(1, count)
    gap = max(min(6.0, wide * 0.22), wide - WIDEST)
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
    return bars, _marks(marks, wording)


def lined(
    series: Sequence[Series], width: int, wording: Callable[[float], str]
) -> tuple[list[Line], list[Dot], list[Tick]]:
    """A line for each series, broken where a value is missing; a lone value is a dot."""
    count = max((len(one.values) for one in series), default=0)
    marks = scale_of(max((v for one in series for v in one.values if v is not None), default=0))
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
    return lines, dots, _marks(marks, wording)


def time_ticks(labels: Sequence[str], width: int) -> list[Tick]:
    """Each label once, in the middle of the buckets that it names, as many as fit."""
    wide = (width - LEFT) / max(1, len(labels))
    ticks: list[tuple[int, Tick]] = []  # how many buckets, and where
    begins = 0
    for label, run in groupby(labels):
        count = len(list(run))
        tick = Tick(round(LEFT + (begins + count / 2) * wide, 2), label)
        if len(ticks) == 1 and ticks[0][0] < count and tick.at - ticks[0][1].at < LABEL:
            ticks = []  # the end of a day, which would cost the next one its label
        if not ticks or tick.at - ticks[-1][1].at >= LABEL:
            ticks.append((count, tick))
        begins += count
    return [tick for _, tick in ticks]


def _marks(marks: Sequence[float], wording: Callable[[float], str]) -> list[Tick]:
    return [
        Tick(round(TOP + PLOT_HEIGHT * (1 - mark / marks[-1]), 2), wording(mark)) for mark in marks
    ]
