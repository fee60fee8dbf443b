"""The health probes /healthz and /readyz, the metrics at /metrics, and the start page."""

import asyncio
import math
import threading
import time
from typing import Any, Final

import msgspec

from proxy.conf import conf
from proxy.counters.backends import is_redis_unavailable
from proxy.counters.shared_file import FAULTS, replaced_files
from proxy.gateway.admission.budgets import team_budgets
from proxy.gateway.http.errors import unknown_path
from proxy.gateway.request.ledger_records import unpriced_models
from proxy.gateway.snapshot.config_snapshot import directory
from proxy.ledger.journal.journal_metrics import RecordCollector
from proxy.ledger.recorder import recorder
from proxy.live.credential_states import STATES
from proxy.metrics.exposition import CONTENT_TYPE, exposition
from proxy.metrics.node_state import NodeCollector
from proxy.secrets import SECRET_FILES

from .http_consumer import StreamingHttpConsumer
from .lifespan import RUNNING, start_services

START_PAGE: Final = b"""<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<title>Messages Bridge</title></head><body><h1>Messages Bridge</h1>
<p>This is a gateway for the Anthropic Messages API. Next steps:</p><ul>
<li>Point a client here: <code>ANTHROPIC_BASE_URL</code> is this address, without <code>/v1</code>;
the key is a gateway key (<code>manage.py createkey</code>).</li>
<li>Read conversations and the ledger in the <a href="/admin/">admin</a>.</li>
<li>See the state of the gateway at <a href="/readyz">/readyz</a>.</li></ul></body></html>
"""
HTML: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"default-src 'none'"),
    (b"x-content-type-options", b"nosniff"),
)
MOST_NAMED: Final = 20
LONGEST_NAMED: Final = 300
"""/readyz lists at most ``MOST_NAMED`` items of one kind, with this many characters each."""
METRICS_CACHE_S: Final = 1.0
"""The response of /metrics is built at most once in this time. Adding up the metrics of two workers
takes 1 to 2 ms."""
PROMETHEUS: Final = ((b"content-type", CONTENT_TYPE.encode()),)


class StartPage(StreamingHttpConsumer):
    """The start page.

    Claude Code tests the connection by ``HEAD /``; a browser shows the next steps.
    """

    methods = ("GET", "HEAD")
    probe = True

    async def handle(self) -> None:
        await self.send_response(200, START_PAGE, HTML)


class Health(StreamingHttpConsumer):
    methods = ("GET", "HEAD")
    probe = True

    async def handle(self) -> None:
        await self.send_response(200, b'{"status":"ok"}')


class Readiness(StreamingHttpConsumer):
    """Return 200 while requests with known gateway keys can be served, else 503.

    The response body contains no secrets and no host names.
    """

    methods = ("GET", "HEAD")
    probe = True

    async def handle(self) -> None:
        await start_services()
        record = recorder.state()
        servable = directory.snapshot.revision >= 0 and record["journal"]
        degraded = [one[:LONGEST_NAMED] for one in sorted(_degraded(record))]
        body: dict[str, Any] = {
            "status": "unavailable" if not servable else "degraded" if degraded else "ok",
            "degraded": degraded,
            "running": len(RUNNING) - 1,  # this request is not counted
            "backlog": record["backlog"],
            "oldest_s": round(record["oldest_s"], 1),
            "unpriced_models": sorted(map(" ".join, unpriced_models)),
        }
        await self.send_response(200 if servable else 503, msgspec.json.encode(body))


class Metrics(StreamingHttpConsumer):
    """The metrics of all workers and the journal's gauges, for Prometheus.

    The metrics contain no secrets and no user names.
    """

    methods = ("GET", "HEAD")
    probe = True

    async def handle(self) -> None:
        await start_services()
        text = (
            metrics_cache.text
            if metrics_cache.fresh
            else await asyncio.to_thread(metrics_cache.refresh)
        )
        await self.send_response(200, text, PROMETHEUS)


class UnknownPath(StreamingHttpConsumer):
    """Return Anthropic's JSON error for an unknown path, instead of a Django page."""

    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

    async def handle(self) -> None:
        raise unknown_path(self.head.path)


class MetricsCache:
    """A cache of the /metrics response, which is built at most once a second."""

    def __init__(self) -> None:
        self.text = b""
        self._at = -math.inf
        self._lock = threading.Lock()

    @property
    def fresh(self) -> bool:
        return time.monotonic() - self._at < METRICS_CACHE_S

    def refresh(self) -> bytes:
        with self._lock:
            if not self.fresh:
                state = recorder.state()
                record = RecordCollector(recorder.directory, state)
                node = NodeCollector(_degraded(state), team_budgets(time.time()))
                self.text, self._at = exposition(record, node), time.monotonic()
            return self.text


metrics_cache: Final = MetricsCache()


def _degraded(record: dict[str, Any]) -> list[str]:
    """Return a list of the gateway's current faults, as texts for the operator."""
    snapshot, now = directory.snapshot, time.time()
    lists = {
        "upstreams that cannot be used": [f"upstream {n} cannot be used" for n in snapshot.broken],
        "upstreams that use their last good secret": [
            f"upstream {name} uses its last good secret: its file cannot be read"
            for name, path in snapshot.secret_files.items()
            if path in SECRET_FILES.faults and name not in snapshot.broken
        ],
        "upstreams whose refresh of a credential fails": [
            f"upstream {name} "
            + ("keeps its last credential" if state.usable else "has no valid credential")
            + ": its refresh fails"
            for name, state in STATES.items()
            if state.fault
        ],
        "pauses": [f"{pause.name} is paused" for pause in snapshot.pauses if pause.ends > now],
        "rows that cannot be read": [*map(str, snapshot.unreadable)],
    }
    found = []
    for title, texts in lists.items():
        found += texts[:MOST_NAMED]
        if len(texts) > MOST_NAMED:
            found.append(f"{title}: {len(texts)}")
    if missing := snapshot.missing_body_keys:
        found.append(f"texts cannot be read: body keys are missing: {', '.join(missing)}")
    if not directory.fresh:
        found.append("the database cannot be read: keys and routes are those last seen")
    if not record["database"]:
        found.append("the database cannot be written: the journal keeps the ledger")
    if is_redis_unavailable():
        found.append("Redis is away: this machine counts budgets and limits for itself")
    found += [f"{name} cannot be used: {fault}" for name, fault in [*FAULTS.items()]]
    found += replaced_files(conf.data_dir)
    if not record["journal"]:
        found.append("the journal cannot be written: no request is accepted")
    return found
