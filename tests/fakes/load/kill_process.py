"""Kill the gateway repeatedly under load and compare clients, upstream and ledger."""

import contextlib
import http.client
import itertools
import json
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.upstream import ScriptedUpstream

from .crash_points import RestartedGateway
from .load_client import LoadClients, Sent, Verdict, chat_response, compare_records

ROUTES = """
[[routes]]
model = "load"
targets = [{ upstream = "chat" }]
"""


def config_for(upstream: ScriptedUpstream) -> str:
    return toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)


class RepeatedKills:
    """``kill_times`` kills the gateway repeatedly; ``verdict`` lets it recover and reads the ledger.

    ``kill_signal`` is SIGKILL, or SIGTERM for a restart by an operator. The gateway runs in children
    of one fork server, so that each start takes a fraction of a second; ``verdict`` ends it.
    """

    def __init__(
        self,
        folder: Path,
        upstream: ScriptedUpstream,
        *,
        streams: int,
        kill_signal: signal.Signals = signal.SIGKILL,
        **environment: str,
    ) -> None:
        config = config_for(upstream)
        self.gateway = RestartedGateway(folder, config=config, environment=environment)
        self.upstream = upstream
        self.streams = streams
        self.kill_signal = kill_signal
        self.sent: list[Sent] = []
        self.numbers = itertools.count(1)
        self._running = contextlib.ExitStack()
        upstream.choose(chat_response)

    def kill_times(self, times: int, *, seed: int = 1, at_most_s: float = 1.5) -> Iterator[int]:
        """Kill the gateway ``times`` times; yield the number of upstream calls that each kill cut."""
        rng = random.Random(seed)  # noqa: S311 -- the numbers are no secrets
        with contextlib.ExitStack() as running:
            self.gateway.port = running.enter_context(reserved_port())
            self.gateway.prepare_python()
            running.callback(self.gateway.close)
            for _ in range(times):
                self._start()
                yield self._run_and_kill(rng.random() * at_most_s)
            self._running = running.pop_all()

    def _start(self) -> None:
        self.gateway.start_child(None)
        assert wait_until_ready(self.gateway, 120), self.gateway.log

    def _run_and_kill(self, longer_s: float) -> int:
        """Start the clients, wait for the first upstream call and ``longer_s`` seconds, then kill."""
        before = len(self.upstream.requests)
        gateway = self.gateway
        with LoadClients(gateway.port, gateway.key, "load", self.streams, self.numbers) as load:
            self.upstream.wait_until(lambda requests: len(requests) > before, within_s=60)
            time.sleep(longer_s)
            gateway.kill(self.kill_signal)
        self.sent += load.sent
        self.upstream.wait_until(lambda requests: all(each.ending for each in requests[before:]))
        return sum(each.ending == "client_gone" for each in self.upstream.requests[before:])

    def verdict(self) -> Verdict:
        """Start the gateway again, wait until it has recovered, verify the ledger, and read it."""
        with self._running:
            self._start()
            wait_until_drained(self.gateway)
            assert "everything is as it was written" in self.gateway.manage("verifyledger")
            rows = self.gateway.rows().values()
            return compare_records(self.sent, self.upstream.requests, rows)


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port while the gateway is down; the gateway can still listen on it."""
    with socket.socket() as reserving:
        reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserving.bind(("127.0.0.1", 0))
        yield reserving.getsockname()[1]


def wait_until_ready(gateway: RestartedGateway, within_s: float) -> bool:
    """Wait until /readyz responds with 200; return False if the process ends or time is up."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and not gateway.wait_for_end(0.05):
        with contextlib.suppress(OSError, http.client.HTTPException):
            if gateway.request("GET", "/readyz").status == 200:
                return True
    return False


def wait_until_drained(gateway: Gateway, *, within_s: float = 120) -> float:
    """Wait until no record waits for the database; return the seconds it took."""
    began = time.monotonic()
    while True:
        ready = json.loads(gateway.request("GET", "/readyz").body)
        if ready["backlog"] == 0 and not ready["degraded"]:
            return time.monotonic() - began
        assert time.monotonic() - began < within_s, ready
        time.sleep(0.2)
