"""The numbers of the dashboard, added up by the very functions that the reports use (D9).

This is the one module of the admin that looks into the reports: two ways to add up the same sums
would one day disagree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.db.models import Sum
from django.utils.timezone import now

from proxy.models import DaySession
from proxy.record.latency import merged, percentile
from proxy.reports.answers import columns_of, streamed
from proxy.reports.budgets import state_of
from proxy.reports.figures import by_group, cache_hit_rate, change, merge
from proxy.reports.rows import RequestRow, request_row
from proxy.reports.spans import BadSpan, Span, ceil_quarter, moment, span_of, zone_named
from proxy.reports.sums import (
    Key,
    Sums,
    cost_of,
    known,
    known_by,
    refreshed_at,
    sketches,
    sketches_by_bucket,
    total,
    usage,
)
from proxy.sandbox import UPSTREAMS as SANDBOXES
from proxy.visibility import Reader, visible_rows

__all__ = [
    "BadSpan",
    "Books",
    "Health",
    "Key",
    "Percentiles",
    "RequestRow",
    "Span",
    "Sums",
    "cache_hit_rate",
    "change",
    "columns_of",
    "cost_of",
    "known",
    "last_days",
    "moment",
    "read_books",
    "read_health",
    "request_row",
    "span_of",
    "state_of",
    "streamed",
    "tokens_of",
    "total",
    "unpriced_in",
    "zone_named",
]

TOKENS: Final = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output")
SESSIONS: Final = 8  # of the ranking
HOURS: Final = 24
HOUR: Final = timedelta(hours=1)
SHOWN_OF_SESSIONS: Final = ("requests", "errors", "cost_nanousd", "unpriced", *known_by(TOKENS))
Percentiles = tuple[float | None, float | None]
"""p50 and p95 of the first byte, in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What one reader sees of a stretch of time."""

    span: Span
    now: Sums
    before: Sums
    by_model: Sequence[Mapping[str, Sums]]
    """For each bucket of the span: the models that were asked for, and their sums."""
    groups: Mapping[str, Mapping[Key, Sums]]
    """By ``team``, ``model``, ``user``, ``key`` (its team, id and name) and ``stop_reason``."""
    sessions: Mapping[Key, Sums]
    """The most expensive ones of the UTC days that the span touches."""
    unpriced: int
    """Requests that lack a price; the sandbox's do not."""
    first_byte: Sequence[Percentiles]
    first_byte_now: Percentiles
    first_byte_before: Percentiles
    as_of: datetime | None


def read_books(reader: Reader, span: Span) -> Books:
    """A fixed number of queries, however many requests, models or buckets there are."""
    table = usage(reader, span, ["model"])
    whole = Span([span.start, span.end], "all", span.zone)
    earlier = Span([span.start - (span.end - span.start), span.start], "all", span.zone)
    by_model: list[dict[str, Sums]] = [{} for _ in span.edges[1:]]
    for (bucket, (model,)), sums in table.items():
        by_model[bucket][str(model)] = sums
    named = {
        "team": ["team"],
        "user": ["user"],
        "key": ["team", "key_id", "key"],
        "stop_reason": ["stop_reason"],
    }
    groups = {name: by_group(usage(reader, whole, keys)) for name, keys in named.items()}
    by_bucket = _first_byte(reader, span)
    return Books(
        span=span,
        now=merge([*table.values()]),
        before=merge([*usage(reader, earlier, []).values()]),
        by_model=by_model,
        groups={"model": by_group(table), **groups},
        sessions=_dearest_sessions(reader, span),
        unpriced=sum(count for _, count in unpriced_in(reader, whole)),
        first_byte=[_percentiles(buckets) for buckets in by_bucket],
        first_byte_now=_percentiles(_added(by_bucket)),
        first_byte_before=_percentiles(
            sketches(reader, earlier, []).get((), {}).get("ttft_ms", {})
        ),
        as_of=refreshed_at(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How the requests of one upstream ended of late."""

    hours: Sequence[Sums]
    """Requests and errors of each hour of the day that ends now, the oldest first."""
    last_hour: Percentiles
    day: Percentiles


def read_health(reader: Reader, at: datetime, zone: ZoneInfo) -> tuple[Span, Mapping[str, Health]]:
    """The hours looked at, and the health of each upstream that was asked in them: two queries.

    They end with the running quarter of an hour, for the books know no less.
    """
    end = ceil_quarter(at)
    span = Span([end - n * HOUR for n in range(HOURS, -1, -1)], "1h", zone)
    hours: dict[str, list[Sums]] = {}
    for (n, (name,)), sums in usage(reader, span, ["upstream"], counts=["errors"]).items():
        hours.setdefault(str(name), [Sums() for _ in range(HOURS)])[n] = sums
    first: dict[str, list[Mapping[str, int]]] = {name: [{}] * HOURS for name in hours}
    for (n, (name,)), sketch in sketches_by_bucket(reader, span, ["upstream"]).items():
        first[str(name)][n] = sketch.get("ttft_ms", {})
    return span, {
        name: Health(
            hours=sums,
            last_hour=_percentiles(first[name][-1]),
            day=_percentiles(_added(first[name])),
        )
        for name, sums in hours.items()
        if name  # without one: refused at the door
    }


def _dearest_sessions(reader: Reader, span: Span) -> Mapping[Key, Sums]:
    """Ranked by the database, and only then added up: there may be a hundred thousand of them."""
    first = datetime.combine(span.start.date(), time(), tzinfo=UTC)
    rows = DaySession.objects.filter(visible_rows(reader), start__gte=first, start__lt=span.end)
    named: Any = rows.exclude(session_id="").order_by().values("session_id")
    ranked = named.annotate(cost=Sum("cost_nanousd"), most=Sum("requests"))
    dearest = ranked.order_by("-cost", "-most", "session_id")[:SESSIONS]
    ids = [line["session_id"] for line in dearest]
    sums = {f"sum_{name}": Sum(name) for name in SHOWN_OF_SESSIONS}
    return {
        (line["session_id"],): Sums({name: line[f"sum_{name}"] for name in SHOWN_OF_SESSIONS})
        for line in named.filter(session_id__in=ids).annotate(**sums)
    }


def last_days(count: int) -> Span:
    """So many times 24 hours, as the dashboard's ranges are."""
    end = now()
    return span_of(end - timedelta(days=count), end, "all", zone_named("UTC"))


def unpriced_in(reader: Reader, span: Span) -> list[tuple[tuple[str, str], int]]:
    """Upstream models and their upstreams whose requests have no price, the most used first.

    The one place that counts them: the banner, the dashboard and the price list tell the same.
    """
    groups = by_group(usage(reader, span, ["model_upstream", "upstream"], counts=["unpriced"]))
    found = [
        ((str(model), str(upstream)), sums["unpriced"])
        for (model, upstream), sums in groups.items()
        if sums["unpriced"] and upstream not in SANDBOXES  # whose answers cost nobody anything
    ]
    return sorted(found, key=lambda one: (-one[1], one[0]))


def tokens_of(sums: Sums) -> int | None:
    """Known tokens of all classes, the cached ones too; reasoning is part of the output."""
    return total(known(sums, name) for name in TOKENS)


def _first_byte(reader: Reader, span: Span) -> list[Mapping[str, int]]:
    """For each bucket, how many first bytes came within which time."""
    found = sketches_by_bucket(reader, span, [])
    empty: Mapping[str, Mapping[str, int]] = {}
    return [found.get((n, ()), empty).get("ttft_ms", {}) for n in range(len(span.edges) - 1)]


def _added(buckets: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    return merged({"ttft_ms": some} for some in buckets).get("ttft_ms", {})


def _percentiles(buckets: Mapping[str, int]) -> Percentiles:
    return percentile(buckets, 0.5), percentile(buckets, 0.95)
