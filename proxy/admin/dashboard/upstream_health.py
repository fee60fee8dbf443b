"""The running requests, and the health of each upstream in the last hour and 24 hours."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.utils.timezone import now

from proxy.admin.core.number_format import UNKNOWN, duration, percent, plural
from proxy.admin.core.session_links import session_url, short_id
from proxy.admin.live.views import all_running
from proxy.live.cooldown_registry import Cooling, cooling
from proxy.live.running_requests import seen_by
from proxy.models import Upstream
from proxy.permissions.row_permissions import Reader, can_see

from . import queries
from .charts import Link
from .queries import Counts, Health, Percentiles, TimeRange
from .svg_charts import Bar

MAX_UPSTREAMS: Final = 12
MAX_SESSIONS: Final = 3
HOUR_WIDTH: Final = 7  # SVG units for the bar of one hour and the gap after it
CHART_HEIGHT: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A summary of the running requests that the signed-in user may see."""

    count: int = 0
    oldest: str = ""
    sessions: Sequence[tuple[str, str]] = ()
    """(shortened id, URL) of the sessions to which the oldest running requests belong."""
    more: int = 0
    """Number of sessions with running requests that ``sessions`` does not contain."""
    by_upstream: Mapping[str, int] = field(default_factory=dict)
    incomplete: bool = False
    """Whether requests of other gateway processes are missing, because they cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodStats:
    """The formatted figures of one upstream in the last hour or the last 24 hours."""

    requests: str
    has_requests: bool
    errors: str
    """Percentage of requests that failed; empty if there were no requests."""
    failed: bool
    first_byte: str
    """p50 and p95 of the time to first byte, as text."""
    url: str
    errors_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRow:
    """One row of the dashboard's table of upstreams."""

    name: str
    url: str
    periods: tuple[PeriodStats, PeriodStats]
    """Figures of the last hour, and of the last 24 hours."""
    running: int
    bars: Sequence[Bar]
    cooldowns: Sequence[str]
    """One text for each model of the upstream that is in a cooldown after failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamHealth:
    running: Running
    upstreams: Sequence[UpstreamRow]
    more: int
    """Number of upstreams that are not shown in the table."""
    since_hour: datetime
    width: int = HOUR_WIDTH * queries.HOURS
    height: int = CHART_HEIGHT


def load_upstream_health(user: Any, reader: Reader, zone: ZoneInfo, link: Link) -> UpstreamHealth:
    """Load the values of the table of upstreams with at most three queries.

    ``link(since, until, **filters)`` returns the URL of the request list.
    """
    time_range, healths = queries.read_health(reader, now(), zone)
    running = _running(reader)
    table = _UpstreamTable(time_range, link, running, cooling())
    names = {*healths, *(_upstreams_in_use() if user.has_perm("proxy.view_upstream") else ())}
    empty = Health(hours=[Counts()] * queries.HOURS, last_hour=(None, None), day=(None, None))
    rows = [
        table.upstream_row(name, healths.get(name, empty))
        for name in sorted(names, key=lambda name: (-_request_count(healths.get(name)), name))
    ]
    return UpstreamHealth(
        running=running,
        upstreams=rows[:MAX_UPSTREAMS],
        more=max(0, len(rows) - MAX_UPSTREAMS),
        since_hour=time_range.edges[-2],
    )


def _upstreams_in_use() -> Iterable[str]:
    found = Upstream.objects.filter(enabled=True, routetarget__isnull=False)
    return found.distinct().values_list("name", flat=True)


def _request_count(health: Health | None) -> int:
    return 0 if health is None else sum(sums["requests"] for sums in health.hours)


def _running(reader: Reader) -> Running:
    rows, incomplete = all_running()
    mine = sorted(
        (row for row in rows if can_see(reader, **seen_by(row))), key=lambda row: -row["age_ms"]
    )
    sessions = list(dict.fromkeys(row["session"] for row in mine if row["session"]))
    return Running(
        count=len(mine),
        oldest=duration(mine[0]["age_ms"]) if mine else "",
        sessions=[(short_id(one), session_url(one)) for one in sessions[:MAX_SESSIONS]],
        more=max(0, len(sessions) - MAX_SESSIONS),
        by_upstream=Counter(row["upstream"] for row in mine),
        incomplete=incomplete,
    )


@dataclass(frozen=True, slots=True)
class _UpstreamTable:
    """The values that all rows of the table of upstreams share."""

    time_range: TimeRange
    link: Link
    running: Running
    cooldowns: Sequence[Cooling]

    def upstream_row(self, name: str, health: Health) -> UpstreamRow:
        return UpstreamRow(
            name=name,
            url=self.link(self.time_range.start, self.time_range.end, via=name),
            periods=(
                self._period(name, health.hours[-1:], health.last_hour),
                self._period(name, health.hours, health.day),
            ),
            running=self.running.by_upstream.get(name, 0),
            bars=self._bars(name, health),
            cooldowns=[
                f"{cooldown.model} is tried last for {duration(1000 * cooldown.left_s)}, "
                f"after {plural(cooldown.failures, 'failure')} in a row"
                for cooldown in self.cooldowns
                if cooldown.upstream == name
            ],
        )

    def _period(self, name: str, hours: Sequence[Counts], first_byte: Percentiles) -> PeriodStats:
        """Return the upstream's figures for the last ``len(hours)`` hours."""
        requests = sum(sums["requests"] for sums in hours)
        errors = sum(sums["errors"] for sums in hours)
        since, until = self.time_range.edges[-1 - len(hours)], self.time_range.end
        p50, p95 = first_byte
        return PeriodStats(
            requests=f"{requests:,}",
            has_requests=requests > 0,
            errors=percent(errors, requests) if requests else "",
            failed=errors > 0,
            first_byte=UNKNOWN if p50 is None else f"{duration(p50)} / {duration(p95)}",
            url=self.link(since, until, via=name),
            errors_url=self.link(since, until, via=name, result="failed"),
        )

    def _bars(self, name: str, health: Health) -> list[Bar]:
        """Return one bar per hour, its height relative to the busiest hour, with errors on top."""
        most = max(sums["requests"] for sums in health.hours) or 1
        bars: list[Bar] = []
        for n, sums in enumerate(health.hours):
            if not sums["requests"]:
                continue
            failed = sums["errors"]
            tall = max(2.0, CHART_HEIGHT * sums["requests"] / most)
            red = max(1.5, tall * failed / sums["requests"]) if failed else 0.0
            start, end = self.time_range.edges[n : n + 2]
            hour = start.astimezone(self.time_range.zone).strftime("%a %d %b, %H:%M")
            title = f"{hour}: {plural(sums['requests'], 'request')}, {failed:,} failed"
            for slug, part, top, filters in (
                ("good", tall - red, CHART_HEIGHT - tall + red, {}),
                ("bad", red, CHART_HEIGHT - tall, {"result": "failed"}),
            ):
                if part > 0:
                    place = (HOUR_WIDTH * n, round(top, 2), HOUR_WIDTH - 1, round(part, 2))
                    url = self.link(start, end, via=name, **filters)
                    bars.append(Bar(*place, slug, title, url))
        return bars
