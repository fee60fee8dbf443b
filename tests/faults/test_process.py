"""Faults of process and host that no script of the catalogue can play (``process.toml``)."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes.gateway import REPOSITORY, Gateway, toml_for
from tests.fakes.steps import LAST_CHUNK, Sleep, Stall, chunk, html_answer, stream_head
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts
from tests.threats import wire

from .sockets import Sockets

ROUTES = """
[[routes]]
model = "chat-*"
targets = [{ upstream = "chat" }]
"""


# Fixtures of the gateway in this process have the names of its own tests.


@pytest.fixture
def player() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        running.on("chat-x", scripts.chat())
        running.on("chat-held", held(Stall()))
        yield running


def held(*ending):
    return [stream_head(), chunk(scripts.chat_chunk({"content": "So far"})), *ending]


def made(folder: Path, player: ScriptedUpstream, **told) -> Gateway:
    config = toml_for({"chat": {"dialect": "chat", "base_url": player.base_url}}, ROUTES)
    return Gateway(folder, config=config, **told)


def stream(gateway: Gateway, model: str) -> socket.socket:
    """A stream of which the first words have come."""
    said = wire.question(model=model, stream=True)
    line = socket.create_connection(("127.0.0.1", gateway.port), timeout=60)
    line.sendall(wire.post(gateway.key, said, f"content-length: {len(said)}"))
    seen = b""
    while b"text_delta" not in seen:
        piece = line.recv(65_536)
        assert piece, seen
        seen += piece
    return line


def rest_of(line: socket.socket) -> bytes:
    heard = b""
    with contextlib.closing(line), contextlib.suppress(ConnectionError):
        while piece := line.recv(65_536):
            heard += piece
    return heard


def ask(gateway: Gateway) -> int:
    return gateway.ask("POST", "/v1/messages", wire.question()).status


def until(true, *, within_s: float = 90):
    deadline = time.monotonic() + within_s
    while not (told := true()):
        assert time.monotonic() < deadline, f"not so after {within_s} s"
        time.sleep(0.05)
    return told


def outcomes(gateway: Gateway) -> list[str]:
    return sorted(row["outcome"] or "open" for row in gateway.rows().values())


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(one) for one in listed.split()]


@pytest.mark.timeout(280)
def test_a_worker_that_dies_takes_only_its_own_streams(player, tmp_path):
    """P05: as the kernel does when memory ends."""
    with made(tmp_path / "gateway", player, workers=2) as gateway:
        lines = [stream(gateway, "chat-held") for _ in range(12)]
        workers = [
            pid for pid in children(gateway.process.pid)
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]  # fmt: skip
        assert len(workers) == 2
        # The other one may have come up later, and hold no stream.
        os.kill(next(pid for pid in workers if Sockets.of(pid).busy(gateway.port)), signal.SIGKILL)

        def cut() -> int:
            gone = 0
            for line in lines:
                line.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    try:
                        gone += line.recv(65_536) == b""
                    except ConnectionError:
                        gone += 1
            return gone

        lost = until(cut)
        assert lost < 12 or len(lines) == lost
        assert [ask(gateway) for _ in range(10)] == [200] * 10
        until(lambda: outcomes(gateway).count("interrupted") >= 1)
        until(lambda: len([p for p in children(gateway.process.pid) if p not in workers]) >= 1)
        assert outcomes(gateway).count("interrupted") <= 12
        for line in lines:
            line.close()
        until(lambda: "open" not in outcomes(gateway))
        assert len(gateway.rows()) == 22


@pytest.mark.timeout(280)
def test_a_process_that_was_stopped_goes_on_where_it_was(player, tmp_path):
    """P06: nobody else ends its requests meanwhile; the true end is the only one."""
    player.on(
        "chat-slow", held(Sleep(2), chunk(b"".join(scripts.chat_events((".",))[1:])), LAST_CHUNK)
    )
    with made(tmp_path / "gateway", player) as gateway:
        with ThreadPoolExecutor(1) as pool:
            line = stream(gateway, "chat-slow")
            heard = pool.submit(rest_of, line)
            os.kill(gateway.process.pid, signal.SIGSTOP)
            try:
                time.sleep(4)  # the fault itself, and longer than the upstream's answer
                gateway.manage("settleorphans")
                assert "interrupted" not in outcomes(gateway)
            finally:
                os.kill(gateway.process.pid, signal.SIGCONT)
            until(lambda: outcomes(gateway) == ["completed"])
            line.shutdown(socket.SHUT_WR)

            assert b"message_stop" in heard.result(90)
        assert ask(gateway) == 200


@pytest.mark.timeout(280)
def test_no_more_files_may_be_opened_and_then_again(player, tmp_path):
    """P09: what runs goes on; what comes waits or is refused; nothing spins."""
    with made(tmp_path / "gateway", player) as gateway:
        pid = gateway.process.pid
        line = stream(gateway, "chat-held")
        assert ask(gateway) == 200
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(
            pid, resource.RLIMIT_NOFILE, (len(list(Path(f"/proc/{pid}/fd").iterdir())) + 3, hard)
        )
        crowd = [
            socket.create_connection(("127.0.0.1", gateway.port), timeout=60) for _ in range(30)
        ]
        before = _cpu_s(pid)
        time.sleep(2)  # long enough to see a loop that spins
        spent = _cpu_s(pid) - before
        for one in crowd:
            one.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

        until(lambda: _asked(gateway) == 200)
        assert spent < 1.5
        line.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            assert line.recv(65_536) != b"", "the stream that ran was cut"
        line.close()
        assert gateway.process.poll() is None


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _asked(gateway: Gateway) -> int:
    try:
        return ask(gateway)
    except OSError:
        return 0


@pytest.mark.timeout(280)
def test_a_log_that_nobody_reads_stops_nobody(player, tmp_path):
    """P11: the pipe of stdout and stderr is full, and stays so."""
    player.on("chat-bad", html_answer(502))
    gateway = made(tmp_path / "gateway", player)
    gateway.folder.mkdir()
    (gateway.folder / "bridge.toml").write_text(gateway.config, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        gateway.port = free.getsockname()[1]
    command = [sys.executable, "manage.py", "serve", "--port", str(gateway.port),
               "--config", str(gateway.folder / "bridge.toml")]  # fmt: skip
    gateway.process = subprocess.Popen(  # noqa: S603 - our own command line
        command, cwd=REPOSITORY, env=gateway._environment(), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        gateway._wait_until_ready()
        failing = wire.question(model="chat-bad")
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(gateway.ask, "POST", "/v1/messages", failing) for _ in range(900)]
            statuses = {one.result(200).status for one in asked}

        assert statuses == {502}
        assert ask(gateway) == 200
    finally:
        gateway.process.terminate()
        with contextlib.suppress(ValueError):
            gateway.process.communicate(timeout=90)


@pytest.mark.timeout(280)
def test_a_second_signal_ends_every_stream_at_once(player, tmp_path):
    """P02: SIGTERM twice; the drain would be a minute."""
    gateway = made(tmp_path / "gateway", player, environment={"BRIDGE_DRAIN_S": "60"})
    with gateway, ThreadPoolExecutor(4) as pool:
        heard = [pool.submit(rest_of, stream(gateway, "chat-held")) for _ in range(4)]
        gateway.process.send_signal(signal.SIGTERM)
        until(lambda: _refuses(gateway))
        assert gateway.process.poll() is None

        began = time.monotonic()
        gateway.process.send_signal(signal.SIGTERM)
        code = gateway.process.wait(55)

        assert code == 0
        assert time.monotonic() - began < 50  # of the minute
        assert all(b"overloaded_error" in one.result(90) for one in heard)
        assert outcomes(gateway) == ["drained"] * 4


def _refuses(gateway: Gateway) -> bool:
    try:
        socket.create_connection(("127.0.0.1", gateway.port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # it was in the queue of the listener
    return False
