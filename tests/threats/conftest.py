"""The gateway of the gateway's own tests (in this process, over real sockets), and sinks."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import pytest

from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts
from tests.proxy.gateway.conftest import (  # noqa: F401 - fixtures: importing them is using them
    database,
    gateway,
    reload,
    scripted,
    tuned,
    world,
)

ROUTES = """
[[routes]]
model = "chat-*"
targets = [{ upstream = "chat" }]
"""


class Running(NamedTuple):
    process: Gateway
    upstream: ScriptedUpstream

    def is_well(self) -> None:
        """The same process answers as ever."""
        assert self.process.process.poll() is None, self.process.log[-2_000:]
        assert self.process.ask("GET", "/healthz").status == 200


@dataclass
class Sink:
    """Listens where nobody should ever call, and keeps what callers said."""

    port: int = 0
    heard: list[bytes] = field(default_factory=list)
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
                return  # closed: the test is over
            with caller:
                caller.settimeout(2)
                self.heard.append(caller.recv(65_536))


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as listening:
        yield listening


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The gateway as an operator runs it: a process of its own, with a scripted upstream."""
    with ScriptedUpstream() as upstream:
        upstream.on("chat-x", scripts.chat())
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        with Gateway(tmp_path_factory.mktemp("running"), config=config) as process:
            yield Running(process, upstream)
