"""The dashboard's view of now: what runs, and how each upstream did in the last hour and day."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.utils.timezone import now

from proxy.live.cooling import Cooling, cooling
from proxy.live.running import seen_by
from proxy.models import Upstream
from proxy.visibility import Reader, sees

from . import books
from .books import Health, Percentiles, Span, Sums
from .charts import Bar
from .drawings import Link
from .figures import UNKNOWN, duration, percent, plural
from .live import all_running, session_url
from .session_list import short_id

MOST_UPSTREAMS: Final = 12
MOST_SESSIONS: Final = 3
BAR: Final = 7  # width of an hour in a drawing, with the gap behind it
TALL: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What runs at this moment, of what the reader may see."""

    count: int = 0
    oldest: str = ""
    sessions: Sequence[tuple[str, str]] = ()
    """Of the longest running ones: their name, and where they are."""
    more: int = 0
    """Sessions that are not named."""
    of_upstream: Mapping[str, int] = field(default_factory=dict)
    away: bool = False
    """Other processes could not be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One upstream in an hour or in a day, as it is read."""

    requests: str
    any: bool
    errors: str
    """Their share of the requests; empty: there were no requests."""
    failed: bool
    first_byte: str
    """p50 and p95."""
    url: str
    errors_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One line of the table of upstreams."""

    name: str
    url: str
    stretches: tuple[Stretch, Stretch]
    """The last hour, and the day."""
    running: int
    bars: Sequence[Bar]
    cools: Sequence[str]
    """Which of its models are tried last, why and for how long yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    running: Running
    servers: Sequence[Server]
    more: int
    """Upstreams that are not shown."""
    since_hour: datetime
    width: int = BAR * books.HOURS
    height: int = TALL


def board_of(user: Any, reader: Reader, zone: ZoneInfo, link: Link) -> Board:
    """Three queries at most. ``link`` makes the address of the requests of a stretch."""
    span, healths = books.read_health(reader, now(), zone)
    running = _running(reader)
    look = Look(span, link, running, cooling())
    names = {*healths, *(_in_use() if user.has_perm("proxy.view_upstream") else ())}
    empty = Health(hours=[Sums()] * books.HOURS, last_hour=(None, None), day=(None, None))
    servers = [
        look.server(name, healths.get(name, empty))
        for name in sorted(names, key=lambda name: (-_asked(healths.get(name)), name))
    ]
    return Board(
        running=running,
        servers=servers[:MOST_UPSTREAMS],
        more=max(0, len(servers) - MOST_UPSTREAMS),
        since_hour=span.edges[-2],
    )


def _in_use() -> Iterable[str]:
    found = Upstream.objects.filter(enabled=True, routetarget__isnull=False)
    return found.distinct().values_list("name", flat=True)


def _asked(health: Health | None) -> int:
    return 0 if health is None else sum(sums["requests"] for sums in health.hours)


def _running(reader: Reader) -> Running:
    rows, away = all_running()
    mine = sorted(
        (row for row in rows if sees(reader, **seen_by(row))), key=lambda row: -row["age_ms"]
    )
    sessions = list(dict.fromkeys(row["session"] for row in mine if row["session"]))
    return Running(
        count=len(mine),
        oldest=duration(mine[0]["age_ms"]) if mine else "",
        sessions=[(short_id(one), session_url(one)) for one in sessions[:MOST_SESSIONS]],
        more=max(0, len(sessions) - MOST_SESSIONS),
        of_upstream=Counter(row["upstream"] for row in mine),
        away=away,
    )


@dataclass(frozen=True, slots=True)
class Look:
    """What all lines of the table have in common."""

    span: Span
    link: Link
    running: Running
    cool: Sequence[Cooling]

    def server(self, name: str, health: Health) -> Server:
        return Server(
            name=name,
            url=self.link(self.span.start, self.span.end, via=name),
            stretches=(
                self._stretch(name, health.hours[-1:], health.last_hour),
                self._stretch(name, health.hours, health.day),
            ),
            running=self.running.of_upstream.get(name, 0),
            bars=self._bars(name, health),
            cools=[
                f"{one.model} is tried last for {duration(1000 * one.left_s)}, "
                f"having failed {one.failures} time{'' if one.failures == 1 else 's'} in a row"
                for one in self.cool
                if one.upstream == name
            ],
        )

    def _stretch(self, name: str, hours: Sequence[Sums], first_byte: Percentiles) -> Stretch:
        """Of the last hours of the span, as many as are given."""
        requests = sum(sums["requests"] for sums in hours)
        errors = sum(sums["errors"] for sums in hours)
        since, until = self.span.edges[-1 - len(hours)], self.span.end
        p50, p95 = first_byte
        return Stretch(
            requests=f"{requests:,}",
            any=requests > 0,
            errors=percent(errors, requests) if requests else "",
            failed=errors > 0,
            first_byte=UNKNOWN if p50 is None else f"{duration(p50)} / {duration(p95)}",
            url=self.link(since, until, via=name),
            errors_url=self.link(since, until, via=name, result="failed"),
        )

    def _bars(self, name: str, health: Health) -> list[Bar]:
        """An hour each, as high as it was busy beside this upstream's busiest; errors on top."""
        most = max(sums["requests"] for sums in health.hours) or 1
        bars: list[Bar] = []
        for n, sums in enumerate(health.hours):
            if not sums["requests"]:
                continue
            failed = sums["errors"]
            tall = max(2.0, TALL * sums["requests"] / most)
            red = max(1.5, tall * failed / sums["requests"]) if failed else 0.0
            start, end = self.span.edges[n : n + 2]
            began = start.astimezone(self.span.zone).strftime("%a %d %b, %H:%M")
            title = f"{began}: {plural(sums['requests'], 'request')}, {failed:,} of them failed"
            for slug, part, top, filters in (
                ("good", tall - red, TALL - tall + red, {}),
                ("bad", red, TALL - tall, {"result": "failed"}),
            ):
                if part > 0:
                    place = (BAR * n, round(top, 2), BAR - 1, round(part, 2))
                    url = self.link(start, end, via=name, **filters)
                    bars.append(Bar(*place, slug, title, url))
        return bars
