"""Connections that wait for the gateway when it gets SIGTERM are served, by one or more workers."""

import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.waiting import until

from .test_killed_parent import workers_of

REQUEST = b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n"
BODY_END = b"}"
CLIENTS = 12


def send_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return stat.rpartition(")")[2].split()[0] == "T"


def read_response(client: socket.socket, *, to_end: bool) -> bytes:
    """Return what is received, up to the end of the connection or of one response; b"" after a RST."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65_536):
            received += piece
            if not to_end and received.endswith(BODY_END):
                break
    return received


@pytest.mark.parametrize("workers", [1, 2])
def test_waiting_and_idle_connections_are_served_and_closed_after_sigterm(tmp_path: Path, workers):
    """The serving processes are stopped meanwhile, so that the clients wait for certain.

    A connection that is neither served nor closed would last until the end of the drain, which is
    longer than the clients wait.
    """
    with (
        Gateway(
            tmp_path / "gateway", toml_for({}, ""), {"BRIDGE_DRAIN_S": "600"}, workers=workers
        ) as gateway,
        contextlib.ExitStack() as stack,
    ):
        parent = gateway.process.pid
        serving = workers_of(parent) if workers > 1 else [parent]
        assert len(serving) == workers

        def connect() -> socket.socket:
            address = ("127.0.0.1", gateway.port)
            return stack.enter_context(socket.create_connection(address, 60))

        idle = [connect() for _ in range(CLIENTS)]
        for client in idle:
            client.sendall(REQUEST)
            assert read_response(client, to_end=False).startswith(b"HTTP/1.1 200 ")
        send_all(serving, signal.SIGSTOP)
        until(lambda: all(map(is_stopped, serving)))
        in_queue = [connect() for _ in range(CLIENTS)]
        for client in (*idle, *in_queue):
            client.sendall(REQUEST)
        send_all(serving, signal.SIGTERM)
        if workers > 1:  # it would end stopped workers; and its listener would keep the queue
            gateway.process.send_signal(signal.SIGKILL)
            gateway.process.wait(60)
        send_all(serving, signal.SIGCONT)
        responses = [read_response(client, to_end=True) for client in (*idle, *in_queue)]
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in serving))

    assert [each[:12] for each in responses] == [b"HTTP/1.1 200"] * 2 * CLIENTS
