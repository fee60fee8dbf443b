"""The three charts of the dashboard: cost, requests, and time to the first byte."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from proxy.admin.core.number_format import dollars, duration, short_count
from proxy.ledger.transcripts.turn_summary import cut_middle

from . import queries
from .queries import DashboardData, TimeRange
from .svg_charts import NARROW, WIDE, Cell, Chart, Series, draw_lines, stack_bars, time_ticks

NAMED_MODELS: Final = 5  # number of models with their own color; all other models share one color
DAY_S: Final = 86_400
Link = Callable[..., str]


def charts_of(data: DashboardData, link: Link) -> list[Chart]:
    return [cost_chart(data, link), request_chart(data, link), first_byte_chart(data, link)]


def cost_chart(data: DashboardData, link: Link) -> Chart:
    """Return the chart of cost by model; a range of more than two days has one bar per day."""
    by_day = not (data.time_range.bucket == "1h" and not _is_long(data.time_range))
    days = queries.bars_of(data.time_range, 24)
    starts, edges = _bar_edges(data.time_range, days)
    costs = _cost_by_bar(data, days, len(starts))
    order = sorted(
        {m for one in costs for m in one}, key=lambda m: -sum(c.get(m, 0) for c in costs)
    )
    series = []
    named = order[:NAMED_MODELS]
    rest = order[NAMED_MODELS:]
    stamps = _bucket_labels(data.time_range, starts, by_day=by_day)
    for rank, model in enumerate([*named, *(["other models"] if rest else [])]):
        members = rest if rank == len(named) else [model]
        values = [sum(one.get(m, 0) for m in members) for one in costs]
        filters = {} if rank == len(named) else {"model_requested": model}
        series.append(
            Series(
                slug="other" if rank == len(named) else f"c{rank}",
                label=model,
                values=values,
                titles=[
                    f"{s}: {model} {dollars(round(v))}" for s, v in zip(stamps, values, strict=True)
                ],
                urls=[link(a, b, **filters) for a, b in edges],
            )
        )
    bars, marks = stack_bars(series, WIDE, _money)
    unit = "hour" if not by_day else "week" if data.time_range.bucket == "1w" else "day"
    total = dollars(queries.cost_of(data.now))
    return Chart(
        name="cost",
        title=f"Cost per {unit}, by model",
        description=f"Stacked bars, one for each {unit}; {total} total.",
        width=WIDE,
        empty="No request in this range has a known price.",
        values=marks,
        times=time_ticks(_ticks(data.time_range, starts, by_day=by_day), WIDE),
        legend=[(one.slug, cut_middle(one.label, 40)) for one in series],
        bars=bars,
        header=[unit.capitalize(), *(one.label for one in series)],
        rows=_rows(stamps, series, lambda value: dollars(round(value))),
    )


def request_chart(data: DashboardData, link: Link) -> Chart:
    """Return the chart of requests per time bucket, with failed requests on top of each bar."""
    time_range = data.time_range
    bars_by_bucket = queries.bars_of(time_range, queries.HOURS_PER_BAR)
    starts, edges = _bar_edges(time_range, bars_by_bucket)
    stamps = _bucket_labels(time_range, starts, by_day=time_range.bucket != "1h")
    requests, failed = [0] * len(starts), [0] * len(starts)
    for bar, models in zip(bars_by_bucket, data.by_model, strict=True):
        requests[bar] += sum(sums["requests"] for sums in models.values())
        failed[bar] += sum(sums["errors"] for sums in models.values())
    good = [float(a - f) for a, f in zip(requests, failed, strict=True)]
    series = [
        Series(
            "good",
            "completed or cancelled",
            good,
            [f"{s}: {n:.0f} completed or cancelled" for s, n in zip(stamps, good, strict=True)],
            [link(a, b) for a, b in edges],
        ),
        Series(
            "bad",
            "errors",
            [float(n) for n in failed],
            [f"{s}: {n} errors" for s, n in zip(stamps, failed, strict=True)],
            [link(a, b, result="failed") for a, b in edges],
        ),
    ]
    bars, marks = stack_bars(
        series, NARROW, lambda value: short_count(round(value)) if value % 1 == 0 else ""
    )
    unit = _unit(time_range)
    return Chart(
        name="requests",
        title=f"Requests per {unit}",
        description=f"{sum(requests):,} requests; {sum(failed):,} errors, on top of each bar.",
        width=NARROW,
        values=marks,
        times=time_ticks(_ticks(time_range, starts, by_day=time_range.bucket != "1h"), NARROW),
        legend=[(one.slug, one.label) for one in series],
        bars=bars,
        header=[unit.capitalize(), "Completed or cancelled", "Errors"],
        rows=_rows(stamps, series, lambda value: f"{value:,.0f}"),
    )


def first_byte_chart(data: DashboardData, link: Link) -> Chart:
    """Return the chart of p50 and p95 of the time to first byte; empty buckets split the lines."""
    time_range = data.time_range
    starts, edges = _bar_edges(time_range, queries.bars_of(time_range, queries.HOURS_PER_BAR))
    stamps = _bucket_labels(time_range, starts, by_day=time_range.bucket != "1h")
    series = []
    for index, (slug, label) in enumerate((("p50", "p50"), ("p95", "p95"))):
        values = [pair[index] for pair in data.first_byte]
        titles = [f"{s}: {label} {duration(v)}" for s, v in zip(stamps, values, strict=True)]
        series.append(Series(slug, label, values, titles, [link(a, b) for a, b in edges]))
    lines, dots, marks = draw_lines(series, NARROW, lambda value: duration(value) if value else "0")
    p50, p95 = data.first_byte_now
    unit = _unit(time_range)
    return Chart(
        name="first-byte",
        title=f"Time to first byte, per {unit}",
        description=f"p50 is {duration(p50)}, p95 is {duration(p95)}.",
        width=NARROW,
        values=marks,
        times=time_ticks(_ticks(time_range, starts, by_day=time_range.bucket != "1h"), NARROW),
        legend=[("p50", "p50"), ("p95", "p95")],
        lines=lines,
        dots=dots,
        header=[unit.capitalize(), "p50", "p95"],
        rows=_rows(stamps, series, duration),
    )


def _money(nanousd: float) -> str:
    """Format an axis value in dollars with as many decimals as needed, but at least two."""
    text = f"{nanousd / 10**9:,.6f}".rstrip("0")
    whole, _, part = text.partition(".")
    return f"${whole}.{part.ljust(2, '0')}" if part else f"${whole}"


def _is_long(time_range: TimeRange) -> bool:
    return (time_range.end - time_range.start).total_seconds() > 2 * DAY_S


def _unit(time_range: TimeRange) -> str:
    if time_range.bucket == "1h" and _is_long(time_range):
        return f"{queries.HOURS_PER_BAR} hours"
    return {"1h": "hour", "1d": "day", "1w": "week"}.get(time_range.bucket, "bucket")


def _bar_edges(
    time_range: TimeRange, bars: Sequence[int]
) -> tuple[list[datetime], list[tuple[datetime, datetime]]]:
    """Return the start times of the bars, and the (start, end) pair of each bar."""
    starts: list[datetime] = []
    for n, edge in enumerate(time_range.edges[:-1]):
        if n == 0 or bars[n] != bars[n - 1]:
            starts.append(edge)
    return starts, list(zip(starts, [*starts[1:], time_range.end], strict=True))


def _cost_by_bar(data: DashboardData, bars: Sequence[int], count: int) -> list[dict[str, int]]:
    """Return, for each bar, the cost by model, without the requests that have no price."""
    costs: list[dict[str, int]] = [{} for _ in range(count)]
    for n, models in enumerate(data.by_model):
        bar = costs[bars[n]]
        for model, sums in models.items():
            if sums["cost_nanousd"]:
                bar[model] = bar.get(model, 0) + sums["cost_nanousd"]
    return costs


def _bucket_labels(time_range: TimeRange, starts: Sequence[datetime], *, by_day: bool) -> list[str]:
    form = "%a %d %b" if by_day else "%a %d %b, %H:%M"
    return [at.astimezone(time_range.zone).strftime(form) for at in starts]


def _ticks(time_range: TimeRange, starts: Sequence[datetime], *, by_day: bool) -> list[str]:
    form = "%d %b" if by_day or _is_long(time_range) else "%H:%M"
    return [at.astimezone(time_range.zone).strftime(form) for at in starts]


def _rows(
    stamps: Sequence[str], series: Sequence[Series], format_value: Callable[[Any], str]
) -> list[tuple[str, Sequence[Cell]]]:
    """Return the rows of the table below the chart; empty buckets are left out."""
    rows: list[tuple[str, Sequence[Cell]]] = []
    for n, stamp in enumerate(stamps):
        if any(one.values[n] for one in series):
            cells = [
                Cell(format_value(one.values[n]), one.urls[n]) if one.values[n] else Cell("")
                for one in series
            ]
            rows.append((stamp, cells))
    return rows
