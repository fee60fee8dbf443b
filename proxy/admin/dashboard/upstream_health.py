"""The running requests, and the health of each upstream in the last hour and 24 hours."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.utils.timezone import now

from proxy.admin.core.exchange_text import session_url, short_id
from proxy.admin.core.number_format import UNKNOWN, duration, percent, plural
from proxy.admin.live.views import visible_running
from proxy.live.cooldown_registry import Cooling, cooling
from proxy.models import Upstream
from proxy.permissions.row_permissions import Reader

from . import queries
from .charts import Bar, Link
from .queries import Counts, Health, Percentiles, TimeRange

MAX_UPSTREAMS: Final = 12
MAX_SESSIONS: Final = 3
HOUR_WIDTH: Final = 7  # SVG units for the bar of one hour and the gap after it
CHART_HEIGHT: Final = 30


def load_upstream_health(user: Any, reader: Reader, zone: ZoneInfo, link: Link) -> dict[str, Any]:
    """Return the template values of the table of upstreams, with at most three queries.

    ``link(since, until, **filters)`` returns the URL of the request list.
    """
    time_range, healths = queries.read_health(reader, now(), zone)
    running, incomplete = visible_running(reader)
    sessions = list(dict.fromkeys(row["session"] for row in running[::-1] if row["session"]))
    by_upstream = Counter(row["upstream"] for row in running)
    table = _UpstreamTable(time_range, link, by_upstream, cooling())
    names = set(healths)
    if user.has_perm("proxy.view_upstream"):
        in_use = Upstream.objects.filter(enabled=True, routetarget__isnull=False)
        names |= set(in_use.distinct().values_list("name", flat=True))
    empty = Health(hours=[Counts()] * queries.HOURS, last_hour=(None, None), day=(None, None))
    rows = [(name, healths.get(name, empty)) for name in names]
    rows.sort(key=lambda row: (-sum(sums["requests"] for sums in row[1].hours), row[0]))
    return {
        "running": {
            "count": len(running),
            "oldest": duration(running[-1]["age_ms"]) if running else "",
            # The sessions to which the oldest running requests belong.
            "sessions": [(short_id(one), session_url(one)) for one in sessions[:MAX_SESSIONS]],
            "more": max(0, len(sessions) - MAX_SESSIONS),
            "incomplete": incomplete,
        },
        "upstreams": [table.upstream_row(name, one) for name, one in rows[:MAX_UPSTREAMS]],
        "more": max(0, len(rows) - MAX_UPSTREAMS),
        "since_hour": time_range.edges[-2],
        "width": HOUR_WIDTH * queries.HOURS,
        "height": CHART_HEIGHT,
    }


@dataclass(frozen=True, slots=True)
class _UpstreamTable:
    """The values that all rows of the table of upstreams share."""

    time_range: TimeRange
    link: Link
    running: Mapping[str, int]
    cooldowns: Sequence[Cooling]

    def upstream_row(self, name: str, health: Health) -> dict[str, Any]:
        return {
            "name": name,
            "url": self.link(self.time_range.start, self.time_range.end, via=name),
            "periods": [
                self._period(name, health.hours[-1:], health.last_hour),
                self._period(name, health.hours, health.day),
            ],
            "running": self.running.get(name, 0),
            "bars": self._bars(name, health),
            "cooldowns": [
                f"{cooldown.model} is tried last for {duration(1000 * cooldown.left_s)}, "
                f"after {plural(cooldown.failures, 'failure')} in a row"
                for cooldown in self.cooldowns
                if cooldown.upstream == name
            ],
        }

    def _period(self, name: str, hours: Sequence[Counts], first_byte: Percentiles) -> Any:
        """Return the upstream's figures for the last ``len(hours)`` hours."""
        requests = sum(sums["requests"] for sums in hours)
        errors = sum(sums["errors"] for sums in hours)
        since, until = self.time_range.edges[-1 - len(hours)], self.time_range.end
        p50, p95 = first_byte
        return {
            "requests": f"{requests:,}",
            "has_requests": requests > 0,
            "errors": percent(errors, requests) if requests else "",
            "failed": errors > 0,
            "first_byte": UNKNOWN if p50 is None else f"{duration(p50)} / {duration(p95)}",
            "url": self.link(since, until, via=name),
            "errors_url": self.link(since, until, via=name, result="failed"),
        }

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
