"""Fixtures: the in-process gateway of the gateway's tests, a gateway process, connection sinks."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import (  # noqa: F401 - importing fixtures makes them available
    database,
    empty_ledger,
    gateway,
    reload,
    scripted,
    world,
)

ROUTES = """
[[routes]]
model = "chat-*"
targets = [{ upstream = "chat" }]
"""


class RunningGateway(NamedTuple):
    process: Gateway
    upstream: ScriptedUpstream

    def assert_healthy(self) -> None:
        """Assert that the same process still runs and responds."""
        assert self.process.process.poll() is None, self.process.log[-2_000:]
        assert self.process.request("GET", "/healthz").status == 200


@dataclass
class ConnectionSink:
    """Listen on a port that must get no connection; record what arrives."""

    port: int = 0
    received: list[bytes] = field(default_factory=list)
    _listeners: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        for host in ("127.0.0.1", "::1"):
            listener = socket.create_server(
                (host, self.port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
            self.port = listener.getsockname()[1]
            self._listeners.append(listener)
            self._threads.append(threading.Thread(target=self._listen, args=(listener,)))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in self._threads:
            thread.join(10)

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return  # closed by __exit__
            with caller:
                caller.settimeout(2)
                self.received.append(caller.recv(65_536))


@pytest.fixture
def sink() -> Iterator[ConnectionSink]:
    with ConnectionSink() as listening:
        yield listening


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """The gateway as a separate process with a scripted upstream, for all tests that only ask."""
    with ScriptedUpstream() as upstream:
        upstream.on("chat-x", upstream_scripts.chat())
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        with Gateway(tmp_path_factory.mktemp("running"), config=config) as process:
            yield RunningGateway(process, upstream)
