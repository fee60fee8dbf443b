"""The charts of the dashboard: cost, requests, and time to the first byte; and their geometry.

Templates draw the bars, lines and labels as SVG. Positions are in SVG user units; the viewBox is
``width`` by ``HEIGHT``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final, NamedTuple

from proxy.admin.core.number_format import dollars, duration, short_count
from proxy.ledger.transcripts.turn_summary import cut_middle

from . import queries
from .queries import DashboardData, TimeRange

NAMED_MODELS: Final = 5  # number of models with their own color; all other models share one color
HOURS_PER_DAY: Final = 24
Link = Callable[..., str]
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


class Bar(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    slug: str
    title: str
    url: str


class Tick(NamedTuple):
    at: float
    label: str


class Line(NamedTuple):
    """One SVG polyline. A missing value splits a series into several polylines."""

    points: str
    slug: str


class Dot(NamedTuple):
    x: float
    y: float
    slug: str
    title: str
    url: str


class Cell(NamedTuple):
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


class Series(NamedTuple):
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


class _TimeAxis:
    """The buckets of a chart. In a range of several days, a bar has ``hours`` hours."""

    def __init__(self, time_range: TimeRange, hours: int, link: Link) -> None:
        starts: list[datetime] = []
        self.bars = queries.bars_of(time_range, hours)
        """The number of its bar for each bucket of the range."""
        for n, edge in enumerate(time_range.edges[:-1]):
            if n == 0 or self.bars[n] != self.bars[n - 1]:
                starts.append(edge)
        is_long = time_range.end - time_range.start > timedelta(days=2)
        by_day = time_range.bucket != "1h" or (is_long and hours == HOURS_PER_DAY)
        self.unit = {"1h": "hour", "1d": "day", "1w": "week"}[time_range.bucket]
        if time_range.bucket == "1h" and is_long:
            self.unit = "day" if by_day else f"{hours} hours"
        local = [at.astimezone(time_range.zone) for at in starts]
        self.labels = [f"{at:%a %d %b}" if by_day else f"{at:%a %d %b, %H:%M}" for at in local]
        self.ticks = [f"{at:%d %b}" if by_day or is_long else f"{at:%H:%M}" for at in local]
        self._edges = list(zip(starts, [*starts[1:], time_range.end], strict=True))
        self._link = link

    def series(
        self,
        slug: str,
        label: str,
        values: Sequence[float | None],
        text: Callable[[Any], str],
        before: str = "",
        **filters: str,
    ) -> Series:
        """Return a series with the title and the link of each bar.

        ``text`` formats a value for the title, and ``before`` precedes it.
        """
        titles = [
            f"{at}: {before}{text(value)}" for at, value in zip(self.labels, values, strict=True)
        ]
        urls = [self._link(start, end, **filters) for start, end in self._edges]
        return Series(slug, label, values, titles, urls)

    def chart(
        self, width: int, series: Sequence[Series], text: Callable[[Any], str], **more: Any
    ) -> Chart:
        """Return a chart with its legend, its time axis and its table, without empty buckets."""
        rows = [
            (
                label,
                [
                    Cell(text(one.values[n]), one.urls[n]) if one.values[n] else Cell("")
                    for one in series
                ],
            )
            for n, label in enumerate(self.labels)
            if any(one.values[n] for one in series)
        ]
        names = [one.label for one in series]
        return Chart(
            width=width,
            times=time_ticks(self.ticks, width),
            legend=[(one.slug, cut_middle(one.label, 40)) for one in series],
            header=[self.unit.capitalize(), *more.pop("header", names)],
            rows=rows,
            **more,
        )


def charts_of(data: DashboardData, link: Link) -> list[Chart]:
    axis = _TimeAxis(data.time_range, queries.HOURS_PER_BAR, link)
    return [cost_chart(data, link), request_chart(data, axis), first_byte_chart(data, axis)]


def cost_chart(data: DashboardData, link: Link) -> Chart:
    """Return the chart of cost by model; a range of more than two days has one bar per day."""
    axis = _TimeAxis(data.time_range, HOURS_PER_DAY, link)
    costs: list[dict[str, int]] = [{} for _ in axis.labels]  # without the requests without a price
    for bar, models in zip(axis.bars, data.by_model, strict=True):
        for model, sums in models.items():
            if sums["cost_nanousd"]:
                costs[bar][model] = costs[bar].get(model, 0) + sums["cost_nanousd"]
    order = sorted(
        {m for one in costs for m in one}, key=lambda m: -sum(c.get(m, 0) for c in costs)
    )
    groups = [(f"c{n}", name, [name]) for n, name in enumerate(order[:NAMED_MODELS])]
    if rest := order[NAMED_MODELS:]:
        groups.append(("other", "other models", rest))
    series = [
        axis.series(
            slug,
            name,
            [sum(one.get(model, 0) for model in models) for one in costs],
            lambda value: dollars(round(value)),
            f"{name} ",
            **({} if slug == "other" else {"model_requested": name}),
        )
        for slug, name, models in groups
    ]
    bars, marks = stack_bars(series, WIDE, _money)
    total = dollars(queries.cost_of(data.now))
    return axis.chart(
        WIDE,
        series,
        lambda value: dollars(round(value)),
        name="cost",
        title=f"Cost per {axis.unit}, by model",
        description=f"Stacked bars, one for each {axis.unit}; {total} total.",
        empty="No request in this range has a known price.",
        values=marks,
        bars=bars,
    )


def request_chart(data: DashboardData, axis: _TimeAxis) -> Chart:
    """Return the chart of requests per time bucket, with failed requests on top of each bar."""
    good, failed = [0] * len(axis.labels), [0] * len(axis.labels)
    for bar, models in zip(axis.bars, data.by_model, strict=True):
        errors = sum(sums["errors"] for sums in models.values())
        failed[bar] += errors
        good[bar] += sum(sums["requests"] for sums in models.values()) - errors
    series = [
        axis.series(
            "good", "completed or cancelled", good, lambda n: f"{n} completed or cancelled"
        ),
        axis.series("bad", "errors", failed, lambda n: f"{n} errors", result="failed"),
    ]
    bars, marks = stack_bars(
        series, NARROW, lambda value: short_count(round(value)) if value % 1 == 0 else ""
    )
    return axis.chart(
        NARROW,
        series,
        lambda value: f"{value:,}",
        name="requests",
        title=f"Requests per {axis.unit}",
        description=f"{sum(good) + sum(failed):,} requests; "
        f"{sum(failed):,} errors, on top of each bar.",
        values=marks,
        bars=bars,
        header=["Completed or cancelled", "Errors"],
    )


def first_byte_chart(data: DashboardData, axis: _TimeAxis) -> Chart:
    """Return the chart of p50 and p95 of the time to first byte; empty buckets split the lines."""
    series = [
        axis.series(label, label, [pair[index] for pair in data.first_byte], duration, f"{label} ")
        for index, label in enumerate(("p50", "p95"))
    ]
    lines, dots, marks = draw_lines(series, NARROW, lambda value: duration(value) if value else "0")
    p50, p95 = data.first_byte_now
    return axis.chart(
        NARROW,
        series,
        duration,
        name="first-byte",
        title=f"Time to first byte, per {axis.unit}",
        description=f"p50 is {duration(p50)}, p95 is {duration(p95)}.",
        values=marks,
        lines=lines,
        dots=dots,
    )


def _money(nanousd: float) -> str:
    """Format an axis value in dollars with as many decimals as needed, but at least two."""
    text = f"{nanousd / 10**9:,.6f}".rstrip("0")
    whole, _, part = text.partition(".")
    return f"${whole}.{part.ljust(2, '0')}" if part else f"${whole}"
