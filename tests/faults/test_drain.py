"""SIGTERM under load: what ends in time ends well, the rest is told, the process ends with 0.

Promises P01, and the sentences on the drain: the listener closes at once, so that nobody new comes.
"""

import asyncio
import json
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.fakes.gateway import Gateway
from tests.fakes.grammar import faults_of_bytes
from tests.fakes.steps import Hold, Stall
from tests.fakes.upstream import ScriptedUpstream

from .client import usual_request
from .ledger import Ledger, SqliteBooks
from .plays import script
from .world import configuration

STREAMS = 200  # half of them end within the drain
SOON = "steady-chat-soon"
NEVER = "steady-chat-never"


@pytest.mark.timeout(280)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_sigterm_ends_each_stream_properly(tmp_path: Path, workers: int):
    with ScriptedUpstream() as upstream:
        begun = script(["stream", "prologue", {"texts": 2}], "chat")
        drains = threading.Event()
        upstream.on(SOON, [*begun, Hold(drains), *script([{"from": 2}, "epilogue", "end"], "chat")])
        upstream.on(NEVER, [*begun, Stall()])
        gateway = Gateway(
            tmp_path / "gateway",
            config=configuration({"steady": upstream.url}),
            environment={"BRIDGE_DRAIN_S": "10", **SECRETS},
            workers=workers,
        )
        with gateway:
            streams, code = asyncio.run(_drained(gateway, upstream, drains))

    assert code == 0
    for model, raw in streams:
        head, _, body = raw.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), raw
        told = _joined(body)
        assert faults_of_bytes(told) == [], told
        end = b"event: message_stop" if model == SOON else b'"type":"overloaded_error"'
        assert end in told, told
    _assert_rows(gateway)


SECRETS = {f"BRIDGE_KEY_{name}": f"sk-br-{name * 8}" for name in
           ("EXPIRED", "NARROW", "REPORTER", "REVOKED", "QUIET")}  # fmt: skip


async def _drained(
    gateway: Gateway, upstream: ScriptedUpstream, drains: threading.Event
) -> tuple[list[tuple[str, bytes]], int]:
    """Open the streams, send SIGTERM when all speak, hear them to their ends."""
    opened = [asyncio.create_task(_ask(gateway, (SOON, NEVER)[n % 2])) for n in range(STREAMS)]
    await asyncio.to_thread(upstream.wait_until, lambda asked: len(asked) == STREAMS, within_s=60)
    gateway.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(_wait_until_refused, gateway.port)
    drains.set()
    streams = await asyncio.gather(*opened)
    return streams, await asyncio.to_thread(gateway.process.wait, 90)


async def _ask(gateway: Gateway, model: str) -> tuple[str, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    body = usual_request(model, "stream", {})
    head = f"POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: {gateway.key}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    raw = await reader.read()
    writer.close()
    return model, raw


def _wait_until_refused(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue  # it was in the queue of the listener
    raise AssertionError("the gateway still listens")


def _joined(body: bytes) -> bytes:
    """A chunked body without its chunks."""
    told = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        told += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return told


def _assert_rows(gateway: Gateway) -> None:
    """What the processes did not move into the database, the next start does."""
    gateway.start()
    deadline = time.monotonic() + 60
    while json.loads(gateway.ask("GET", "/readyz").body)["backlog"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    gateway.stop()
    ledger = Ledger(SqliteBooks(gateway.folder / "data" / "ledger.sqlite3"))
    assert ledger.open_rows() == []
    for model, outcome in ((SOON, "completed"), (NEVER, "drained")):
        rows = ledger.rows_of(model)
        assert [row["outcome"] for row in rows] == [outcome] * (STREAMS // 2)
        assert {row["status"] for row in rows} == {200}
