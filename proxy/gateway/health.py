"""Probes: /healthz it answers, /readyz it can serve, /metrics in numbers; the start page."""

import asyncio
import math
import threading
import time
from typing import Any, Final

import msgspec

from proxy.counters.shared import is_redis_away
from proxy.record.gauges import prometheus
from proxy.record.recorder import recorder
from proxy.secrets import SECRET_FILES

from . import unpriced
from .base import StreamingHttpConsumer
from .directory import directory
from .lifespan import RUNNING, start_parts
from .refusals import unknown_path
from .reporting import metrics

START_PAGE: Final = b"""<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<title>Messages Bridge</title></head><body><h1>Messages Bridge</h1>
<p>This is a gateway for the Anthropic Messages API. Next steps:</p><ul>
<li>Point a client here: <code>ANTHROPIC_BASE_URL</code> is this address, without <code>/v1</code>;
the key is a gateway key (<code>manage.py createkey</code>).</li>
<li>Read conversations and the books in the <a href="/admin/">admin</a>.</li>
<li>See whether all is well at <a href="/readyz">/readyz</a>.</li></ul></body></html>
"""
HTML: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"default-src 'none'"),
    (b"x-content-type-options", b"nosniff"),
)
MOST_NAMED: Final = 20
LONGEST_NAMED: Final = 300
"""So many things, each of so many characters, /readyz names at most of one kind."""
NUMBERS_FOR_S: Final = 1.0
"""The workers write their numbers once a second; to add them up takes 0.6 ms and more."""
PROMETHEUS: Final = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


class StartPage(StreamingHttpConsumer):
    """``HEAD /`` is how Claude Code looks whether somebody is there; a human gets directions."""

    methods = ("GET", "HEAD")
    probe = True

    async def handle(self) -> None:
        await self.respond(200, START_PAGE, HTML)


class Health(StreamingHttpConsumer):
    methods = ("GET", "HEAD")
    probe = True

    async def handle(self) -> None:
        await self.respond(200, b'{"status":"ok"}')


class Readiness(StreamingHttpConsumer):
    """200 while requests of known keys can be served, 503 when not. No secrets, no host names."""

    methods = ("GET", "HEAD")
    probe = True

    async def handle(self) -> None:
        await start_parts()
        record = recorder.state()
        servable = directory.snapshot.revision >= 0 and record["spool"]
        degraded = [one[:LONGEST_NAMED] for one in sorted(_degraded(record))]
        body: dict[str, Any] = {
            "status": "unavailable" if not servable else "degraded" if degraded else "ok",
            "degraded": degraded,
            "running": len(RUNNING) - 1,  # besides this one
            "backlog": record["backlog"],
            "oldest_s": round(record["oldest_s"], 1),
            "unpriced_models": unpriced.names(),
        }
        await self.respond(200 if servable else 503, msgspec.json.encode(body))


class Metrics(StreamingHttpConsumer):
    """All workers' numbers and the record's gauges for Prometheus. No secrets, no people."""

    methods = ("GET", "HEAD")
    probe = True

    async def handle(self) -> None:
        await start_parts()
        text = _numbers.text if _numbers.fresh else await asyncio.to_thread(_numbers.added_up)
        await self.respond(200, text, PROMETHEUS)


class UnknownPath(StreamingHttpConsumer):
    """Whatever else is asked under /v1/: Anthropic's JSON, never a page of Django's."""

    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

    async def handle(self) -> None:
        raise unknown_path(self.head.path)


class _Numbers:
    """The text of /metrics, made at most once a second however many ask."""

    def __init__(self) -> None:
        self.text = b""
        self._at = -math.inf
        self._lock = threading.Lock()

    @property
    def fresh(self) -> bool:
        return time.monotonic() - self._at < NUMBERS_FOR_S

    def added_up(self) -> bytes:
        with self._lock:
            if not self.fresh:
                folder = recorder.directory
                text = metrics.text(folder) + prometheus(folder, recorder.state())
                self.text, self._at = text.encode(), time.monotonic()
            return self.text


_numbers: Final = _Numbers()


def _degraded(record: dict[str, Any]) -> list[str]:
    """What is not as it should be, in words an operator can grep for."""
    snapshot = directory.snapshot
    found = [f"upstream {name} cannot be used" for name in [*snapshot.broken][:MOST_NAMED]]
    if len(snapshot.broken) > MOST_NAMED:
        found.append(f"upstreams that cannot be used: {len(snapshot.broken)}")
    kept = [
        f"upstream {name} uses its last good secret: its file cannot be read"
        for name, path in snapshot.secret_files.items()
        if path in SECRET_FILES.faults and name not in snapshot.broken
    ]
    found += kept[:MOST_NAMED]
    if len(kept) > MOST_NAMED:
        found.append(f"upstreams that use their last good secret: {len(kept)}")
    found += map(str, snapshot.unread[:MOST_NAMED])
    if len(snapshot.unread) > MOST_NAMED:
        found.append(f"rows that cannot be read: {len(snapshot.unread)}")
    if not directory.fresh:
        found.append("the database cannot be read: keys and routes are those last seen")
    if not record["database"]:
        found.append("the database cannot be written: the spool keeps the ledger")
    if is_redis_away():
        found.append("Redis is away: this machine counts budgets and limits for itself")
    if not record["spool"]:
        found.append("the spool cannot be written: no request is accepted")
    return found
