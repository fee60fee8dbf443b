"""Faults of process and host that a catalogue script cannot express (``tables/process.toml``)."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes.servers.gateway import REPOSITORY, Gateway, toml_for
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

from .environment.sockets import Sockets

ROUTES = """
[[routes]]
model = "chat-*"
targets = [{ upstream = "chat" }]
"""


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        running.on("chat-x", upstream_scripts.chat())
        running.on("chat-stalled", partial_stream(Stall()))
        yield running


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


def outcomes(gateway: Gateway) -> list[str]:
    return sorted(row["outcome"] or "open" for row in gateway.rows().values())


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
        until(lambda: outcomes(gateway).count("interrupted") == len(own))
        until(lambda: set(children(gateway.process.pid)) - set(workers))
        assert not any(is_closed(each) for each in others)
        for connection in connections:
            connection.close()
        until(lambda: len(outcomes(gateway)) == 22 and "open" not in outcomes(gateway))
        assert outcomes(gateway).count("interrupted") == len(own)


@pytest.mark.timeout(280)
def test_stopped_process_continues_its_streams(upstream, tmp_path):
    """P06: no other process closes the rows of its requests; they close once, when it continues."""
    stopped = threading.Event()
    rest = chunk(b"".join(upstream_scripts.chat_events((".",))[1:]))
    upstream.on("chat-slow", partial_stream(WaitForGate(stopped), rest, LAST_CHUNK))
    with new_gateway(tmp_path / "gateway", upstream) as gateway:
        with ThreadPoolExecutor(1) as pool:
            connection = stream(gateway, "chat-slow")
            received = pool.submit(rest_of, connection)
            os.kill(gateway.process.pid, signal.SIGSTOP)
            try:
                stopped.set()
                upstream.wait_until(
                    lambda requests: [each.ending for each in requests] == ["answered"]
                )
                gateway.manage("settleorphans")
                assert "interrupted" not in outcomes(gateway)
            finally:
                os.kill(gateway.process.pid, signal.SIGCONT)
            until(lambda: outcomes(gateway) == ["completed"])
            connection.shutdown(socket.SHUT_WR)

            assert b"message_stop" in received.result(90)
        assert send_request(gateway) == 200


@pytest.mark.timeout(280)
def test_file_limit_delays_new_connections_only(upstream, tmp_path):
    """P09: running streams continue; new connections wait or are refused; no loop spins."""
    with new_gateway(tmp_path / "gateway", upstream) as gateway:
        pid = gateway.process.pid
        connection = stream(gateway, "chat-stalled")
        assert send_request(gateway) == 200
        soft_limit, hard_limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(
            pid,
            resource.RLIMIT_NOFILE,
            (len(list(Path(f"/proc/{pid}/fd").iterdir())) + 3, hard_limit),
        )
        idle = [
            socket.create_connection(("127.0.0.1", gateway.port), timeout=60) for _ in range(30)
        ]
        before = gateway.cpu_s
        time.sleep(1)  # long enough to detect a spinning loop
        spent = gateway.cpu_s - before
        for result in idle:
            result.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft_limit, hard_limit))

        until(lambda: _status_or_0(gateway) == 200)
        assert spent < 0.7
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            assert connection.recv(65_536) != b"", "the running stream was cut"
        connection.close()
        assert gateway.process.poll() is None


def _status_or_0(gateway: Gateway) -> int:
    try:
        return send_request(gateway)
    except OSError:
        return 0


@pytest.mark.timeout(280)
def test_unread_log_pipe_blocks_no_request(upstream, tmp_path):
    """P11: the pipe of stdout and stderr is full and is not read."""
    upstream.on("chat-bad", html_response(502))
    gateway = new_gateway(tmp_path / "gateway", upstream)
    gateway.folder.mkdir()
    (gateway.folder / "bridge.toml").write_text(gateway.config, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        gateway.port = free.getsockname()[1]
    command = [sys.executable, "manage.py", "serve", "--port", str(gateway.port),
               "--config", str(gateway.folder / "bridge.toml")]  # fmt: skip
    gateway.process = subprocess.Popen(  # noqa: S603 - fixed command line
        command, cwd=REPOSITORY, env=gateway._environment(), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        gateway._wait_until_ready()
        failing = raw_http.messages_body(model="chat-bad")
        with ThreadPoolExecutor(8) as pool:
            responses = [
                pool.submit(gateway.request, "POST", "/v1/messages", failing) for _ in range(900)
            ]
            statuses = {future.result(200).status for future in responses}

        assert statuses == {502}
        assert send_request(gateway) == 200
    finally:
        gateway.process.terminate()
        with contextlib.suppress(ValueError):
            gateway.process.communicate(timeout=90)


@pytest.mark.timeout(280)
def test_second_sigterm_ends_every_stream_at_once(upstream, tmp_path):
    """P02: SIGTERM twice; the drain would take a minute."""
    gateway = new_gateway(tmp_path / "gateway", upstream, environment={"BRIDGE_DRAIN_S": "60"})
    with gateway, ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(rest_of, stream(gateway, "chat-stalled")) for _ in range(4)]
        gateway.process.send_signal(signal.SIGTERM)
        until(lambda: _refuses(gateway))
        assert gateway.process.poll() is None

        start = time.monotonic()
        gateway.process.send_signal(signal.SIGTERM)
        code = gateway.process.wait(55)

        assert code == 0
        assert time.monotonic() - start < 50  # the drain would take 60
        assert all(b"overloaded_error" in future.result(90) for future in streams)
        assert outcomes(gateway) == ["drained"] * 4


def _refuses(gateway: Gateway) -> bool:
    try:
        socket.create_connection(("127.0.0.1", gateway.port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # it was in the listener's accept queue
    return False
