"""The numbers of the dashboard, added up by the very functions that the reports use (D9).

This is the one module of the admin that looks into the reports: two ways to add up the same sums
would one day disagree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Final

from django.utils.timezone import now

from proxy.record.latency import merged, percentile
from proxy.reports.answers import columns_of, streamed
from proxy.reports.budgets import state_of
from proxy.reports.figures import by_group, cache_hit_rate, change, known, merge
from proxy.reports.rows import RequestRow, request_row
from proxy.reports.spans import BadSpan, Span, moment, span_of, zone_named
from proxy.reports.sums import (
    Key,
    Sums,
    cost_of,
    refreshed_at,
    sketches,
    sketches_by_bucket,
    usage,
)
from proxy.sandbox import UPSTREAMS as SANDBOXES
from proxy.visibility import Reader

__all__ = [
    "BadSpan",
    "Books",
    "Key",
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
    "request_row",
    "span_of",
    "state_of",
    "streamed",
    "tokens_of",
    "unpriced_in",
    "zone_named",
]

TOKENS: Final = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output")
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
    """By ``team``, ``model``, ``key`` (its team, id and name) and ``stop_reason``."""
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
    named = {"team": ["team"], "key": ["team", "key_id", "key"], "stop_reason": ["stop_reason"]}
    groups = {name: by_group(usage(reader, whole, keys)) for name, keys in named.items()}
    by_bucket = _first_byte(reader, span)
    return Books(
        span=span,
        now=merge([*table.values()]),
        before=merge([*usage(reader, earlier, []).values()]),
        by_model=by_model,
        groups={"model": by_group(table), **groups},
        first_byte=[_percentiles(buckets) for buckets in by_bucket],
        first_byte_now=_percentiles(_added(by_bucket)),
        first_byte_before=_percentiles(
            sketches(reader, earlier, []).get((), {}).get("ttft_ms", {})
        ),
        as_of=refreshed_at(),
    )


def last_days(count: int) -> Span:
    """Today and the UTC days before it: read from the rollups of days alone."""
    end = datetime.combine(now().date() + timedelta(days=1), time(), tzinfo=UTC)
    return Span([end - timedelta(days=count), end], "all", zone_named("UTC"))


def unpriced_in(reader: Reader, span: Span) -> list[tuple[tuple[str, str], int]]:
    """Upstream models and their upstreams whose requests have no price, the most used first."""
    groups = by_group(usage(reader, span, ["model_upstream", "upstream"], counts=["unpriced"]))
    found = [
        ((str(model), str(upstream)), sums["unpriced"])
        for (model, upstream), sums in groups.items()
        if sums["unpriced"] and upstream not in SANDBOXES  # whose answers cost nobody anything
    ]
    return sorted(found, key=lambda one: (-one[1], one[0]))


def tokens_of(sums: Sums) -> int:
    """Known tokens of all classes, the cached ones too; reasoning is part of the output."""
    return sum(known(sums, name) for name in TOKENS)


def _first_byte(reader: Reader, span: Span) -> list[Mapping[str, int]]:
    """For each bucket, how many first bytes came within which time."""
    found = sketches_by_bucket(reader, span, [])
    empty: Mapping[str, Mapping[str, int]] = {}
    return [found.get((n, ()), empty).get("ttft_ms", {}) for n in range(len(span.edges) - 1)]


def _added(buckets: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    return merged({"ttft_ms": some} for some in buckets).get("ttft_ms", {})


def _percentiles(buckets: Mapping[str, int]) -> Percentiles:
    return percentile(buckets, 0.5), percentile(buckets, 0.95)
