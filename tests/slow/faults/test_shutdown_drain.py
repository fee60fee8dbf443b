"""SIGTERM under load: streams that end within the drain complete, others get an error event.

Proves promise P01 and the rules of the drain: the listener closes at once, and the process exits
with code 0.
"""

import asyncio
import json
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.fakes.servers.gateway import Gateway
from tests.fakes.upstreams.grammar import faults_of_bytes
from tests.fakes.upstreams.script_steps import Stall, WaitForGate
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.lanes import repeat
from tests.waiting import until

from .environment.client import usual_request
from .environment.invariants import configuration
from .environment.ledger import Ledger, SqliteLedger
from .fault_scripts import script

STREAMS = repeat(fast=30, slow=200)  # half of them end within the drain
DRAIN_S = repeat(fast=3, slow=10)
COMPLETES = "steady-chat-soon"
STALLS = "steady-chat-never"


@pytest.mark.repeated
@pytest.mark.timeout(280)
@pytest.mark.parametrize("workers", repeat(fast=[1], slow=[1, 2]))
def test_sigterm_completes_or_ends_each_stream_with_an_error(tmp_path: Path, workers: int):
    with ScriptedUpstream() as upstream:
        first_part = script(["stream", "prologue", {"texts": 2}], "chat")
        drain_started = threading.Event()
        upstream.on(
            COMPLETES,
            [
                *first_part,
                WaitForGate(drain_started),
                *script([{"from": 2}, "epilogue", "end"], "chat"),
            ],
        )
        upstream.on(STALLS, [*first_part, Stall()])
        gateway = Gateway(
            tmp_path / "gateway",
            config=configuration({"steady": upstream.url}),
            environment={"BRIDGE_DRAIN_S": str(DRAIN_S), **SECRETS},
            workers=workers,
        )
        with gateway:
            streams, code = asyncio.run(_drain(gateway, upstream, drain_started))

    assert code == 0
    for model, raw in streams:
        head, _, body = raw.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), raw
        stream_bytes = _dechunk(body)
        assert faults_of_bytes(stream_bytes) == [], stream_bytes
        end = b"event: message_stop" if model == COMPLETES else b'"type":"overloaded_error"'
        assert end in stream_bytes, stream_bytes
    _assert_rows(gateway)


SECRETS = {f"BRIDGE_KEY_{name}": f"sk-br-{name * 8}" for name in
           ("EXPIRED", "NARROW", "REPORTER", "REVOKED", "QUIET")}  # fmt: skip


async def _drain(
    gateway: Gateway, upstream: ScriptedUpstream, drain_started: threading.Event
) -> tuple[list[tuple[str, bytes]], int]:
    """Open the streams, send SIGTERM when all have started, and read them to their ends."""
    opened = [
        asyncio.create_task(_open_stream(gateway, (COMPLETES, STALLS)[n % 2]))
        for n in range(STREAMS)
    ]
    await asyncio.to_thread(
        upstream.wait_until, lambda requests: len(requests) == STREAMS, within_s=60
    )
    gateway.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(_wait_until_refused, gateway.port)
    drain_started.set()
    streams = await asyncio.gather(*opened)
    return streams, await asyncio.to_thread(gateway.process.wait, 90)


async def _open_stream(gateway: Gateway, model: str) -> tuple[str, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    body = usual_request(model, "stream", {})
    head = f"POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: {gateway.key}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    raw = await reader.read()
    writer.close()
    return model, raw


def _wait_until_refused(port: int) -> None:
    def is_refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            pass  # it was in the listener's accept queue
        return False

    until(is_refused, "the gateway still listens")


def _dechunk(body: bytes) -> bytes:
    """Decode a chunked body."""
    stream_bytes = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        stream_bytes += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return stream_bytes


def _assert_rows(gateway: Gateway) -> None:
    """Restart the gateway, which writes the remaining records to the database, and check the rows."""
    gateway.start()
    until(lambda: not json.loads(gateway.request("GET", "/readyz").body)["backlog"])
    gateway.stop()
    ledger = Ledger(SqliteLedger(gateway.folder / "data" / "ledger.sqlite3"))
    assert ledger.open_rows() == []
    for model, outcome in ((COMPLETES, "completed"), (STALLS, "drained")):
        rows = ledger.rows_of(model)
        assert [row["outcome"] for row in rows] == [outcome] * (STREAMS // 2)
        assert {row["status"] for row in rows} == {200}
