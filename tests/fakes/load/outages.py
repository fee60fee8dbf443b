"""Stop the ledger's database under load, restart it, and compare the records afterwards."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tests.fakes.servers.gateway import Gateway
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.lanes import repeat

from .kill_process import config_for, wait_until_drained
from .load_client import LoadClients, Sent, Verdict, chat_response, compare_records

OUTAGE_S = repeat(fast=0.5, slow=300.0, variable="BRIDGE_TEST_OUTAGE_S")
CLIENTS = repeat(fast=12, slow=90)
"""Sixty requests a second in the slow lane: a client sends two in three seconds."""
DETECTED_WITHIN_S = 60.0
"""Maximum seconds until /readyz reports the outage, with time for a loaded machine."""


class Server(Protocol):
    """A database server that a test owns."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Outage(NamedTuple):
    """What the clients saw and what the ledger contains at the end."""

    sent: list[Sent]
    during: int  # requests that ended while the database was away
    degraded: list[str]  # the ``degraded`` texts of /readyz during the outage
    backlog: int  # records that waited when the database came back
    drained_s: float
    verdict: Verdict

    @property
    def errors(self) -> list[Sent]:
        return [each for each in self.sent if each.ending != "whole"]


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    server.stop()
    yield
    server.start()


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Lock the SQLite file from another connection."""
    connection = sqlite3.connect(database, isolation_level=None, timeout=30)
    connection.execute("BEGIN EXCLUSIVE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


def run_outage(
    gateway: Gateway,
    upstream: ScriptedUpstream,
    outage: AbstractContextManager[None],
    *,
    outage_s: float = OUTAGE_S,
    clients: int = CLIENTS,
    degraded_text: str = "",
) -> Outage:
    """Run load clients before, during and after a database outage; the gateway already runs.

    The outage lasts ``outage_s`` seconds, and until /readyz has ``degraded_text`` in ``degraded``.
    """
    upstream.choose(chat_response)
    with LoadClients(gateway.port, gateway.key, "load", clients, pause_s=1.0) as load:
        upstream.wait_until(lambda received: len(received) >= clients)
        with outage:
            before = len(load.sent)
            readiness = _watch(gateway, load, outage_s, degraded_text)
            during = len(load.sent) - before
        returned = time.monotonic()
        received = len(upstream.requests)
        upstream.wait_until(lambda calls: len(calls) >= received + clients)
    wait_until_drained(gateway)
    drained_s = time.monotonic() - returned
    return Outage(
        sent=load.sent,
        during=during,
        degraded=readiness["degraded"],
        backlog=readiness["backlog"],
        drained_s=drained_s,
        verdict=compare_records(load.sent, upstream.requests, gateway.rows().values()),
    )


def assert_no_client_affected(outage: Outage) -> None:
    """Assert that no request failed and that each has exactly one row."""
    assert outage.during > 0, "no request ran during the outage, so the test proves nothing"
    assert outage.backlog > 0
    assert outage.errors == []
    assert outage.verdict.faults == {}
    assert outage.verdict.completed == outage.verdict.sent


def _watch(
    gateway: Gateway, load: LoadClients, outage_s: float, degraded_text: str
) -> dict[str, Any]:
    """Poll /readyz until the time is over and it reports the outage; return its last payload."""
    before, began = len(load.sent), time.monotonic()
    while True:
        reply = gateway.request("GET", "/readyz")
        assert reply.status == 200, reply.body
        readiness: dict[str, Any] = json.loads(reply.body)
        lasted = time.monotonic() - began
        noticed = (
            readiness["backlog"]
            and degraded_text in str(readiness["degraded"])
            and len(load.sent) > before
        )
        if lasted >= outage_s and (noticed or lasted >= outage_s + DETECTED_WITHIN_S):
            return readiness
        time.sleep(0.1)


__all__ = ["Outage", "assert_no_client_affected", "config_for", "locked", "run_outage", "stopped"]
