"""Faults of process and host that a catalogue script cannot express (``tables/process.toml``)."""

import contextlib
import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest

from tests.fakes.servers.gateway import REPOSITORY, Gateway, toml_for
from tests.fakes.servers.prepared import copy_ledger
from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    Stall,
    WaitForGate,
    chunk,
    html_response,
    stream_head,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.slow.threats import raw_http
from tests.waiting import until

from .environment.ledger import Ledger, SqliteLedger
from .environment.sockets import Sockets

ROUTES = """
[[routes]]
model = "chat-*"
targets = [{ upstream = "chat" }]
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        running.on("chat-x", upstream_scripts.chat())
        for model in ("chat-stalled", "chat-drained"):
            running.on(model, partial_stream(Stall()))
        yield running


@pytest.fixture(scope="module")
def shared_gateway(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway with one process, whose drain takes a minute if a stream does not end."""
    environment = {"BRIDGE_DRAIN_S": "60"}
    folder = tmp_path_factory.mktemp("gateway")
    with new_gateway(folder, upstream, environment=environment) as running:
        yield running


@pytest.fixture
def gateway(shared_gateway: Gateway) -> Gateway:
    """The shared gateway; it runs again if a test has ended it."""
    if shared_gateway.process.poll() is not None:
        shared_gateway.start()
    return shared_gateway


def partial_stream(*ending):
    return [stream_head(), chunk(upstream_scripts.chat_chunk({"content": "So far"})), *ending]


def new_gateway(folder: Path, upstream: ScriptedUpstream, **options) -> Gateway:
    config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
    return Gateway(folder, config=config, **options)


def stream(gateway: Gateway, model: str) -> socket.socket:
    """Open a stream and read its first text."""
    body = raw_http.messages_body(model=model, stream=True)
    connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=60)
    connection.sendall(raw_http.post(gateway.key, body, f"content-length: {len(body)}"))
    seen = b""
    while b"text_delta" not in seen:
        piece = connection.recv(65_536)
        assert piece, seen
        seen += piece
    return connection


def rest_of(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.closing(connection), contextlib.suppress(ConnectionError):
        while piece := connection.recv(65_536):
            received += piece
    return received


def is_closed(connection: socket.socket) -> bool:
    """Return whether the gateway has closed the connection; discard what it has sent."""
    connection.setblocking(False)
    try:
        return connection.recv(65_536) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def send_request(gateway: Gateway) -> int:
    return gateway.request("POST", "/v1/messages", raw_http.messages_body()).status


def outcomes(gateway: Gateway, model: str) -> list[str]:
    """Return the outcomes of a model's rows."""
    ledger = Ledger(SqliteLedger(gateway.folder / "data" / "ledger.sqlite3"))
    return sorted(row["outcome"] or "open" for row in ledger.rows_of(model))


def ended(gateway: Gateway, model: str) -> list[str]:
    return [each for each in outcomes(gateway, model) if each != "open"]


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(result) for result in listed.split()]


@pytest.mark.timeout(280)
def test_killed_worker_ends_only_its_own_streams(upstream, tmp_path):
    """P05: SIGKILL, as the kernel sends it when memory is exhausted."""
    with new_gateway(tmp_path / "gateway", upstream, workers=2) as gateway:
        connections = [stream(gateway, "chat-stalled") for _ in range(12)]
        workers = [
            pid for pid in children(gateway.process.pid)
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]  # fmt: skip
        assert len(workers) == 2
        # A worker that started later may have no stream.
        victim = next(pid for pid in workers if Sockets.of(pid).busy(gateway.port))
        ports = {each.remote for each in Sockets.of(victim).busy(gateway.port)}
        own = [each for each in connections if each.getsockname()[1] in ports]
        others = [each for each in connections if each not in own]
        os.kill(victim, signal.SIGKILL)

        until(lambda: all(is_closed(each) for each in own))
        assert [send_request(gateway) for _ in range(10)] == [200] * 10
        until(lambda: outcomes(gateway, "chat-stalled").count("interrupted") == len(own))
        until(lambda: set(children(gateway.process.pid)) - set(workers))
        assert not any(is_closed(each) for each in others)
        for connection in connections:
            connection.close()
        until(lambda: len(ended(gateway, "chat-stalled")) == len(connections))
        assert outcomes(gateway, "chat-stalled").count("interrupted") == len(own)
        until(lambda: ended(gateway, "chat-x") == ["completed"] * 10)


@pytest.mark.timeout(280)
def test_stopped_process_continues_its_streams(upstream: ScriptedUpstream, gateway: Gateway):
    """P06: no other process closes the rows of its requests; they close once, when it continues."""
    stopped = threading.Event()
    rest = chunk(b"".join(upstream_scripts.chat_events((".",))[1:]))
    upstream.on("chat-slow", partial_stream(WaitForGate(stopped), rest, LAST_CHUNK))
    with ThreadPoolExecutor(1) as pool:
        connection = stream(gateway, "chat-slow")
        received = pool.submit(rest_of, connection)
        os.kill(gateway.process.pid, signal.SIGSTOP)
        try:
            stopped.set()
            upstream.wait_until(lambda _: upstream.requests_for("chat-slow")[0].ending)
            gateway.manage("settleorphans")
            assert "interrupted" not in outcomes(gateway, "chat-slow")
        finally:
            os.kill(gateway.process.pid, signal.SIGCONT)
        until(lambda: outcomes(gateway, "chat-slow") == ["completed"])
        connection.shutdown(socket.SHUT_WR)

        assert b"message_stop" in received.result(90)
    assert [each.ending for each in upstream.requests_for("chat-slow")] == ["answered"]
    assert send_request(gateway) == 200


@pytest.mark.timeout(280)
def test_file_limit_delays_new_connections_only(gateway: Gateway):
    """P09: running streams continue; new connections wait or are refused; no loop spins."""
    pid = gateway.process.pid
    connection = stream(gateway, "chat-stalled")
    assert send_request(gateway) == 200
    soft_limit, hard_limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    few = len(list(Path(f"/proc/{pid}/fd").iterdir())) + 3
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, hard_limit))
    idle = [socket.create_connection(("127.0.0.1", gateway.port), timeout=60) for _ in range(30)]
    before = gateway.cpu_s
    time.sleep(1)  # long enough to detect a spinning loop
    spent = gateway.cpu_s - before
    for each in idle:
        each.close()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft_limit, hard_limit))

    until(lambda: _status_or_0(gateway) == 200)
    assert spent < 0.7
    assert not is_closed(connection), "the running stream was cut"
    connection.close()
    assert gateway.process.poll() is None


def _status_or_0(gateway: Gateway) -> int:
    try:
        return send_request(gateway)
    except OSError:
        return 0


@pytest.mark.timeout(280)
def test_unread_log_pipe_blocks_no_request(upstream: ScriptedUpstream, tmp_path: Path):
    """P11: the pipe of stdout and stderr is full and is not read."""
    upstream.on("chat-bad", html_response(502))
    gateway = new_gateway(tmp_path, upstream)
    copy_ledger(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as free:
        gateway.port = free.getsockname()[1]
    gateway.process = subprocess.Popen(  # noqa: S603 - fixed command line
        gateway.command_line(), cwd=REPOSITORY, env=gateway.environment_variables(), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, pipesize=PIPE_BYTES,
    )  # fmt: skip
    try:
        gateway.wait_until_ready()
        failing = raw_http.messages_body(model="chat-bad")
        with ThreadPoolExecutor(8) as pool:
            responses = [
                pool.submit(gateway.request, "POST", "/v1/messages", failing) for _ in range(40)
            ]
            statuses = {future.result(200).status for future in responses}

        assert statuses == {502}
        assert waiting_bytes(gateway.process.stdout) > PIPE_BYTES - LONGEST_LINE, "it is not full"
        assert send_request(gateway) == 200
    finally:
        gateway.process.terminate()
        with contextlib.suppress(ValueError):
            gateway.process.communicate(timeout=90)


PIPE_BYTES = 4_096  # the smallest pipe that Linux has, so that few lines fill it
LONGEST_LINE = 1_000


def waiting_bytes(pipe: IO[bytes]) -> int:
    """Return the number of unread bytes in the pipe."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


@pytest.mark.timeout(280)
def test_second_sigterm_ends_every_stream_at_once(gateway: Gateway):
    """P02: SIGTERM twice; the drain would take a minute."""
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(rest_of, stream(gateway, "chat-drained")) for _ in range(4)]
        gateway.process.send_signal(signal.SIGTERM)
        until(lambda: _refuses(gateway))
        assert gateway.process.poll() is None

        start = time.monotonic()
        gateway.process.send_signal(signal.SIGTERM)
        code = gateway.process.wait(55)

        assert code == 0
        assert time.monotonic() - start < 50  # the drain would take 60
        assert all(b"overloaded_error" in future.result(90) for future in streams)
        assert outcomes(gateway, "chat-drained") == ["drained"] * 4


def _refuses(gateway: Gateway) -> bool:
    try:
        socket.create_connection(("127.0.0.1", gateway.port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # it was in the listener's accept queue
    return False
