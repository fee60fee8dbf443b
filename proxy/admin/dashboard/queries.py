"""The figures of the dashboard, computed with the functions of the reports API.

Calling these functions avoids a second implementation of the same sums, which could give different
results. This is the only module of the admin that imports the reports API.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import compress
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.db.models import Min, Q, Sum
from django.db.models.functions import Coalesce
from django.utils.timezone import now

from proxy.admin.core.pages import READ_TRANSCRIPT
from proxy.ledger.usage.latency_histogram import merge_histograms, percentile
from proxy.models import Exchange, UsageBySessionDay
from proxy.models.setup.upstreams import SANDBOXES
from proxy.permissions.readings import first_words
from proxy.permissions.row_permissions import Reader, visible_exchanges, visible_rows
from proxy.reports.core.rendering import column_names, stream_rows
from proxy.reports.core.time_ranges import (
    InvalidTimeRange,
    TimeRange,
    build_time_range,
    ceil_quarter,
    load_zone,
    midnight,
    month_bounds,
    parse_instant,
)
from proxy.reports.requests.serializers import RequestRow, request_row
from proxy.reports.usage.days import (
    outcome_row,
    outcome_rows,
    outcome_sums,
    stop_reason_rows,
)
from proxy.reports.usage.metrics import (
    cache_hit_rate,
    merge_counts,
    percent_change,
    sum_by_group,
)
from proxy.reports.usage.reports import Compared, compare, deltas, period_before
from proxy.reports.usage.rollup_queries import (
    Counts,
    Key,
    cost_of,
    known_token_counts,
    known_tokens,
    refreshed_at,
    sketches,
    sketches_by_bucket,
    sum_known,
    usage,
)

__all__ = [
    "Compared",
    "Counts",
    "InvalidTimeRange",
    "Key",
    "RequestRow",
    "TimeRange",
    "build_time_range",
    "cache_hit_rate",
    "column_names",
    "compare",
    "cost_of",
    "deltas",
    "known_tokens",
    "load_zone",
    "midnight",
    "month_bounds",
    "outcome_row",
    "outcome_rows",
    "outcome_sums",
    "parse_instant",
    "percent_change",
    "period_before",
    "request_row",
    "stop_reason_rows",
    "stream_rows",
    "sum_known",
]

TOKENS: Final = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output")
MAX_SESSIONS: Final = 8  # rows in the dashboard's table of sessions
HOURS: Final = 24
HOURS_PER_BAR: Final = 6
"""Hours of a bar in the charts of requests and time to first byte, in ranges of several days."""
HOUR: Final = timedelta(hours=1)
SESSION_COLUMNS: Final = (
    "requests",
    "errors",
    "cost_nanousd",
    "unpriced",
    *known_token_counts(TOKENS),
)
FIRST_REQUEST: Final = Coalesce(Min("pk", filter=Q(tool_calls__gt=0)), Min("pk"))
"""The request that represents a session: its first one with tool calls, because the very first one
is often a side call, such as for a title."""
Percentiles = tuple[float | None, float | None]
"""p50 and p95 of the time to first byte, in milliseconds; None if nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardData:
    """The figures of a time range, for the requests that one user may see."""

    time_range: TimeRange
    now: Counts
    before: Counts
    by_model: Sequence[Mapping[str, Counts]]
    """For each time bucket of the range, the sums by requested model."""
    groups: Mapping[str, Mapping[Key, Counts]]
    """Sums by ``team``, ``model``, ``user``, ``key`` (team, key id, name) or ``stop_reason``, and
    by ``session`` those of the most expensive sessions, over the whole UTC days of the range."""
    unpriced: int
    """Number of requests without a price, except requests to the sandbox upstream."""
    first_byte: Sequence[Percentiles]
    """For each bar of ``bars_of`` with ``HOURS_PER_BAR``."""
    first_byte_now: Percentiles
    first_byte_before: Percentiles
    as_of: datetime | None


def load_dashboard(reader: Reader, time_range: TimeRange) -> DashboardData:
    """Load the figures of the dashboard with a fixed number of database queries."""
    table = usage(reader, time_range, ["model"])
    whole = TimeRange([time_range.start, time_range.end], "all", time_range.zone)
    earlier = period_before(time_range)
    by_model: list[dict[str, Counts]] = [{} for _ in time_range.edges[1:]]
    for (bucket, (model,)), sums in table.items():
        by_model[bucket][str(model)] = sums
    columns = {
        "team": ["team"],
        "user": ["user"],
        "key": ["team", "key_id", "key"],
        "stop_reason": ["stop_reason"],
    }
    groups = {name: sum_by_group(usage(reader, whole, keys)) for name, keys in columns.items()}
    found = sketches_by_bucket(reader, time_range, [])
    empty: Mapping[str, Mapping[str, int]] = {}
    by_bucket = [found.get((n, ()), empty).get("ttft_ms", {}) for n in range(len(by_model))]
    bars = bars_of(time_range, HOURS_PER_BAR)
    return DashboardData(
        time_range=time_range,
        now=merge_counts([*table.values()]),
        before=merge_counts([*usage(reader, earlier, []).values()]),
        by_model=by_model,
        groups={
            "model": sum_by_group(table),
            "session": _most_expensive_sessions(reader, time_range),
            **groups,
        },
        unpriced=sum(count for _, count in unpriced_in(reader, whole)),
        first_byte=[
            _percentiles(_merge_buckets(compress(by_bucket, (place == bar for place in bars))))
            for bar in range(bars[-1] + 1 if bars else 0)
        ],
        first_byte_now=_percentiles(_merge_buckets(by_bucket)),
        first_byte_before=_percentiles(
            sketches(reader, earlier, []).get((), {}).get("ttft_ms", {})
        ),
        as_of=refreshed_at(),
    )


def load_usage_of(
    reader: Reader, time_range: TimeRange, condition: Q, columns: Mapping[str, Sequence[str]]
) -> tuple[Counts, dict[str, Mapping[Key, Counts]]]:
    """Return the totals of the requests that match the condition, and their sums by group.

    ``columns``: group -> its dimensions. The group ``session`` has the most expensive sessions.
    """
    groups: dict[str, Mapping[Key, Counts]] = {
        name: sum_by_group(usage(reader, time_range, keys, condition))
        for name, keys in columns.items()
    }
    groups["session"] = _most_expensive_sessions(reader, time_range, condition)
    return merge_counts([*usage(reader, time_range, [], condition).values()]), groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The requests, errors and latency of one upstream in the last 24 hours."""

    hours: Sequence[Counts]
    """One entry for each of the last 24 hours, the oldest hour first."""
    last_hour: Percentiles
    day: Percentiles


def read_health(
    reader: Reader, at: datetime, zone: ZoneInfo
) -> tuple[TimeRange, Mapping[str, Health]]:
    """Return the last 24 hours as a range, and the health of each upstream used in them.

    This takes two queries. The range ends with the current quarter of an hour, the smallest bucket
    of the rollups.
    """
    end = ceil_quarter(at)
    time_range = TimeRange([end - n * HOUR for n in range(HOURS, -1, -1)], "1h", zone)
    hours: dict[str, list[Counts]] = {}
    for (n, (name,)), sums in usage(reader, time_range, ["upstream"], counts=["errors"]).items():
        hours.setdefault(str(name), [Counts() for _ in range(HOURS)])[n] = sums
    first: dict[str, list[Mapping[str, int]]] = {name: [{}] * HOURS for name in hours}
    for (n, (name,)), sketch in sketches_by_bucket(reader, time_range, ["upstream"]).items():
        first[str(name)][n] = sketch.get("ttft_ms", {})
    return time_range, {
        name: Health(
            hours=sums,
            last_hour=_percentiles(first[name][-1]),
            day=_percentiles(_merge_buckets(first[name])),
        )
        for name, sums in hours.items()
        # Without an upstream's name, the gateway rejected the request before it chose an upstream.
        if name
    }


def bars_of(time_range: TimeRange, hours: int) -> list[int]:
    """Return, for each time bucket of the range, the number of its bar in a chart.

    In a range of more than two days with hourly buckets, a bar has ``hours`` hours, counted from
    midnight in the range's time zone: more bars would be too narrow to read. Otherwise each bucket
    has a bar of its own.
    """
    starts = time_range.edges[:-1]
    if time_range.bucket != "1h" or time_range.end - time_range.start <= timedelta(days=2):
        return list(range(len(starts)))
    local = [start.astimezone(time_range.zone) for start in starts]
    periods = [(at.date(), at.hour // hours) for at in local]
    numbers = {period: number for number, period in enumerate(dict.fromkeys(periods))}
    return [numbers[period] for period in periods]


def _most_expensive_sessions(
    reader: Reader, time_range: TimeRange, condition: Q | None = None
) -> Mapping[Key, Counts]:
    """Return the sums of the most expensive sessions that match the condition.

    A first query ranks the sessions by cost, a second one reads the other sums of the top ones
    only, because there may be 100,000 sessions.
    """
    first = datetime.combine(time_range.start.date(), time(), tzinfo=UTC)
    rows = UsageBySessionDay.objects.filter(
        visible_rows(reader) & (condition or Q()), start__gte=first, start__lt=time_range.end
    )
    sessions: Any = rows.exclude(session_id="").order_by().values("session_id")
    ranked = sessions.annotate(cost=Sum("cost_nanousd"), requests_total=Sum("requests"))
    top = ranked.order_by("-cost", "-requests_total", "session_id")[:MAX_SESSIONS]
    ids = [line["session_id"] for line in top]
    sums = {f"sum_{name}": Sum(name) for name in SESSION_COLUMNS}
    return {
        (line["session_id"],): Counts({name: line[f"sum_{name}"] for name in SESSION_COLUMNS})
        for line in sessions.filter(session_id__in=ids).annotate(**sums)
    }


def session_titles(user: Any, reader: Reader, sessions: Iterable[Key]) -> dict[str, str]:
    """Return the first words of each session's user; nothing if ``user`` may not read them."""
    if not user.has_perm(READ_TRANSCRIPT):
        return {}
    firsts = (
        visible_exchanges(reader)
        .filter(session_id__in=[str(session) for (session,) in sessions])
        .order_by()
        .values("session_id")
        .annotate(first=FIRST_REQUEST)
    )
    found = Exchange.objects.filter(pk__in=[one["first"] for one in firsts])
    columns = ("session_id", "prompt", "preview", "user", "key_id")
    return {row.session_id: first_words(reader, row) for row in found.only(*columns)}


def last_days(count: int) -> TimeRange:
    """Return the time range of the last ``count`` times 24 hours, as one bucket."""
    end = now()
    return build_time_range(end - timedelta(days=count), end, "all", load_zone("UTC"))


def unpriced_in(reader: Reader, time_range: TimeRange) -> list[tuple[tuple[str, str], int]]:
    """Return ((model, upstream), count of requests without a price), the highest count first.

    The notices, the dashboard and the price list all use this function, so their counts agree.
    """
    groups = sum_by_group(
        usage(reader, time_range, ["model_upstream", "upstream"], counts=["unpriced"])
    )
    found = [
        ((str(model), str(upstream)), sums["unpriced"])
        for (model, upstream), sums in groups.items()
        if sums["unpriced"] and upstream not in SANDBOXES  # responses of the sandbox cost nothing
    ]
    return sorted(found, key=lambda one: (-one[1], one[0]))


def tokens_of(sums: Counts) -> int | None:
    """Return the sum of all token classes; output tokens already include reasoning tokens."""
    return sum_known(known_tokens(sums, name) for name in TOKENS)


def _merge_buckets(buckets: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    return merge_histograms({"ttft_ms": some} for some in buckets).get("ttft_ms", {})


def _percentiles(buckets: Mapping[str, int]) -> Percentiles:
    return percentile(buckets, 0.5), percentile(buckets, 0.95)
