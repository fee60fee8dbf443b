"""The ledger's database goes away under a crowd of streams, comes back, and the verdict."""

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from .crowd import Crowd, Sent, Verdict, chat_answer, judge
from .gateway import Gateway
from .killing import config_for, wait_until_drained
from .upstream import ScriptedUpstream

AWAY_S = float(os.environ.get("BRIDGE_TEST_OUTAGE_S", "300"))
CLIENTS = 90
"""As G10 asks: five minutes of sixty requests a second, for each asks two times in three."""
FELT_WITHIN_S = 60.0
"""A busy machine may be late to find out that its database is away."""


class Server(Protocol):
    """A database server that a test owns."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Outage(NamedTuple):
    """What the clients saw and what the books say in the end."""

    sent: list[Sent]
    during: int  # requests that ended while the database was away
    degraded: list[str]  # what /readyz said meanwhile
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
    """Another program holds the SQLite file for itself."""
    link = sqlite3.connect(database, isolation_level=None, timeout=30)
    link.execute("BEGIN EXCLUSIVE")
    yield
    link.execute("ROLLBACK")
    link.close()


def ride_out(
    gateway: Gateway,
    player: ScriptedUpstream,
    away: AbstractContextManager[None],
    *,
    away_s: float = AWAY_S,
    clients: int = CLIENTS,
    shown: str = "",
) -> Outage:
    """Run the crowd before, while and after the database is away; the gateway runs already.

    It is away for ``away_s``, and until /readyz says ``shown`` among what is degraded.
    """
    player.choose(chat_answer)
    with Crowd(gateway.port, gateway.key, "crowd", clients, pause_s=1.0) as crowd:
        player.wait_until(lambda asked: len(asked) >= clients)
        with away:
            before = len(crowd.sent)
            told = _watch(gateway, crowd, away_s, shown)
            during = len(crowd.sent) - before
        returned = time.monotonic()
        asked = len(player.asked)
        player.wait_until(lambda calls: len(calls) >= asked + clients)
    wait_until_drained(gateway)
    drained_s = time.monotonic() - returned
    return Outage(
        sent=crowd.sent,
        during=during,
        degraded=told["degraded"],
        backlog=told["backlog"],
        drained_s=drained_s,
        verdict=judge(crowd.sent, player.asked, gateway.rows().values()),
    )


def nobody_noticed(outage: Outage) -> None:
    """No client, and no book: every request has its row, once."""
    assert outage.during > 0, "nothing was asked meanwhile: the test proves nothing"
    assert outage.backlog > 0
    assert outage.errors == []
    assert outage.verdict.faults == {}
    assert outage.verdict.completed == outage.verdict.sent


def _watch(gateway: Gateway, crowd: Crowd, away_s: float, shown: str) -> dict[str, Any]:
    """Ask /readyz until the time is over and the outage is felt; what it said then."""
    before, began = len(crowd.sent), time.monotonic()
    while True:
        reply = gateway.ask("GET", "/readyz")
        assert reply.status == 200, reply.body
        told: dict[str, Any] = json.loads(reply.body)
        lasted = time.monotonic() - began
        felt = told["backlog"] and shown in str(told["degraded"]) and len(crowd.sent) > before
        if lasted >= away_s and (felt or lasted >= away_s + FELT_WITHIN_S):
            return told
        time.sleep(0.5)


__all__ = ["Outage", "config_for", "locked", "nobody_noticed", "ride_out", "stopped"]
