"""The dashboard's three charts: what it costs, how much is asked, how soon it begins."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from . import books
from .books import Books, Span
from .charts import NARROW, WIDE, Cell, Chart, Series, lined, stacked, time_ticks
from .figures import dollars, duration, short_count

COLOURS: Final = 5  # models with a colour of their own; all others share one
DAY_S: Final = 86_400
Link = Callable[..., str]


def charts_of(found: Books, link: Link) -> list[Chart]:
    return [cost_chart(found, link), request_chart(found, link), first_byte_chart(found, link)]


def cost_chart(found: Books, link: Link) -> Chart:
    """Stacked by model. By days, unless the whole span is no longer than two."""
    days = _days(found.span)
    starts, edges = _merged(found.span, days)
    costs = _added(found, days, len(starts))
    order = sorted(
        {m for one in costs for m in one}, key=lambda m: -sum(c.get(m, 0) for c in costs)
    )
    series = []
    named = order[:COLOURS]
    rest = order[COLOURS:]
    stamps = _stamps(found.span, starts, by_day=days is not None)
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
    bars, marks = stacked(series, WIDE, _money)
    unit = "hour" if days is None else "week" if found.span.bucket == "1w" else "day"
    total = dollars(books.cost_of(found.now))
    return Chart(
        name="cost",
        title=f"Cost per {unit}, by model",
        description=f"Stacked bars, one for each {unit}; {total} in all.",
        width=WIDE,
        empty="Nothing in this range has a known price.",
        values=marks,
        times=time_ticks(_ticks(found.span, starts, by_day=days is not None), WIDE),
        legend=[(one.slug, one.label) for one in series],
        bars=bars,
        header=[unit.capitalize(), *(one.label for one in series)],
        rows=_rows(stamps, series, lambda value: dollars(round(value))),
    )


def request_chart(found: Books, link: Link) -> Chart:
    """Requests by bucket, those that failed on top."""
    span = found.span
    edges = list(zip(span.edges, span.edges[1:], strict=False))
    stamps = _stamps(span, span.edges[:-1], by_day=span.bucket != "1h")
    asked = [sum(sums["requests"] for sums in one.values()) for one in found.by_model]
    failed = [sum(sums["errors"] for sums in one.values()) for one in found.by_model]
    good = [float(a - f) for a, f in zip(asked, failed, strict=True)]
    series = [
        Series(
            "good",
            "answered or left by the client",
            good,
            [f"{s}: {n:.0f} answered" for s, n in zip(stamps, good, strict=True)],
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
    bars, marks = stacked(
        series, NARROW, lambda value: short_count(round(value)) if value % 1 == 0 else ""
    )
    unit = _unit(span)
    return Chart(
        name="requests",
        title=f"Requests per {unit}",
        description=f"{sum(asked):,} requests; {sum(failed):,} of them errors, on top of each bar.",
        width=NARROW,
        values=marks,
        times=time_ticks(_ticks(span, span.edges[:-1], by_day=span.bucket != "1h"), NARROW),
        legend=[(one.slug, one.label) for one in series],
        bars=bars,
        header=[unit.capitalize(), "Answered or left", "Errors"],
        rows=_rows(stamps, series, lambda value: f"{value:,.0f}"),
    )


def first_byte_chart(found: Books, link: Link) -> Chart:
    """Two lines, broken where nothing was measured."""
    span = found.span
    edges = list(zip(span.edges, span.edges[1:], strict=False))
    stamps = _stamps(span, span.edges[:-1], by_day=span.bucket != "1h")
    series = []
    for place, (slug, label) in enumerate((("p50", "p50"), ("p95", "p95"))):
        values = [one[place] for one in found.first_byte]
        titles = [f"{s}: {label} {duration(v)}" for s, v in zip(stamps, values, strict=True)]
        series.append(Series(slug, label, values, titles, [link(a, b) for a, b in edges]))
    lines, dots, marks = lined(series, NARROW, lambda value: duration(value) if value else "0")
    p50, p95 = found.first_byte_now
    unit = _unit(span)
    return Chart(
        name="first-byte",
        title=f"Time to the first byte, per {unit}",
        description=f"Half of all began within {duration(p50)}, 95 of 100 within {duration(p95)}.",
        width=NARROW,
        values=marks,
        times=time_ticks(_ticks(span, span.edges[:-1], by_day=span.bucket != "1h"), NARROW),
        legend=[("p50", "p50: half of all requests"), ("p95", "p95: 95 of 100")],
        lines=lines,
        dots=dots,
        header=[unit.capitalize(), "p50", "p95"],
        rows=_rows(stamps, series, duration),
    )


def _money(nanousd: float) -> str:
    """A mark of the axis: as many places as a step of it needs."""
    text = f"{nanousd / 10**9:,.6f}".rstrip("0")
    whole, _, part = text.partition(".")
    return f"${whole}.{part.ljust(2, '0')}" if part else f"${whole}"


def _unit(span: Span) -> str:
    return {"1h": "hour", "1d": "day", "1w": "week"}.get(span.bucket, "bucket")


def _days(span: Span) -> list[int] | None:
    """For each bucket of hours the number of its day; None: leave the buckets as they are."""
    if span.bucket != "1h" or (span.end - span.start).total_seconds() <= 2 * DAY_S:
        return None if span.bucket == "1h" else list(range(len(span.edges) - 1))
    dates = [edge.astimezone(span.zone).date() for edge in span.edges[:-1]]
    places = {day: n for n, day in enumerate(dict.fromkeys(dates))}
    return [places[day] for day in dates]


def _merged(
    span: Span, days: Sequence[int] | None
) -> tuple[list[datetime], list[tuple[datetime, datetime]]]:
    """Where each bar begins, and its two edges."""
    starts: list[datetime] = []
    for n, edge in enumerate(span.edges[:-1]):
        if days is None or n == 0 or days[n] != days[n - 1]:
            starts.append(edge)
    return starts, list(zip(starts, [*starts[1:], span.end], strict=True))


def _added(found: Books, days: Sequence[int] | None, count: int) -> list[dict[str, int]]:
    """For each bar the cost of each model. What has no price is not in it."""
    costs: list[dict[str, int]] = [{} for _ in range(count)]
    for n, models in enumerate(found.by_model):
        place = costs[days[n] if days is not None else n]
        for model, sums in models.items():
            if sums["cost_nanousd"]:
                place[model] = place.get(model, 0) + sums["cost_nanousd"]
    return costs


def _stamps(span: Span, starts: Sequence[datetime], *, by_day: bool) -> list[str]:
    form = "%a %d %b" if by_day else "%a %d %b, %H:%M"
    return [at.astimezone(span.zone).strftime(form) for at in starts]


def _ticks(span: Span, starts: Sequence[datetime], *, by_day: bool) -> list[str]:
    long = (span.end - span.start).total_seconds() > 2 * DAY_S
    form = "%d %b" if by_day or long else "%H:%M"
    return [at.astimezone(span.zone).strftime(form) for at in starts]


def _rows(
    stamps: Sequence[str], series: Sequence[Series], wording: Callable[[Any], str]
) -> list[tuple[str, Sequence[Cell]]]:
    """The chart as a table; empty buckets are left out."""
    rows: list[tuple[str, Sequence[Cell]]] = []
    for n, stamp in enumerate(stamps):
        if any(one.values[n] for one in series):
            cells = [
                Cell(wording(one.values[n]), one.urls[n]) if one.values[n] else Cell("")
                for one in series
            ]
            rows.append((stamp, cells))
    return rows
