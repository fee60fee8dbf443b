"""Run an upstream that numbers its events and clients that check that each arrives once.

Each event carries its number and its send time, so that the clients detect missing, duplicate and
late ones. Delays include those of the driver itself, which shares the machine.
"""

import asyncio
import contextlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import quantiles
from typing import Any

from bridge_project.env import VARIABLES
from tests.fakes.servers.gateway import KEY, Gateway, toml_for

ROUTE = '\n[[routes]]\nmodel = "*"\ntargets = [{ upstream = "chat" }]\n'
MARK = b'"text":"'
ONCE = "/once"
OVERLOADED = b"overloaded_error"


@contextlib.contextmanager
def counting_gateway(most_streams: int) -> Iterator[tuple[Gateway, BaseProcess]]:
    """Run a gateway that sheds load as in production; yield it and the process of its upstream."""
    here, there = multiprocessing.Pipe()
    upstream = multiprocessing.get_context("spawn").Process(
        target=_upstream, args=(there,), daemon=True
    )
    upstream.start()
    chat = {"dialect": "chat", "base_url": f"http://127.0.0.1:{here.recv()}/v1"}
    more = {
        "BRIDGE_MAX_STREAMS": str(most_streams),
        "BRIDGE_SHED_LAG_S": VARIABLES["BRIDGE_SHED_LAG_S"].default,  # tests raise this limit
    }
    with tempfile.TemporaryDirectory() as folder:
        config = toml_for({"chat": chat}, ROUTE)
        with Gateway(Path(folder) / "gateway", config=config, environment=more) as gateway:
            yield gateway, upstream


# The upstream runs in its own process


def _upstream(port: Any) -> None:
    asyncio.run(_listen(port))


async def _listen(port: Any) -> None:
    server = await asyncio.start_server(_respond, "127.0.0.1", 0, backlog=4096)
    port.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the numbered events that the model name ``<events per second>/<seconds>`` requests.

    With the suffix ``/once`` the connection closes after the response.
    """
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            model = json.loads(await reader.readexactly(length))["model"]
            rate, seconds = parse_model(model)
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
            due = time.monotonic()
            for number in range(max(1, int(rate * seconds))):
                _send_chunk(writer, {"content": f"{number}@{time.monotonic():.6f} "})
                await writer.drain()
                due += 1 / rate
                await asyncio.sleep(due - time.monotonic())
            _send_chunk(writer, {}, "stop")
            writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            if model.endswith(ONCE):
                break
        writer.close()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def parse_model(model: str) -> tuple[float, float]:
    """Return (events per second, seconds) of a model name."""
    rate, seconds = model.removesuffix(ONCE).split("/")
    return float(rate), float(seconds)


def _send_chunk(
    writer: asyncio.StreamWriter, delta: dict[str, str], finish: str | None = None
) -> None:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    event = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    writer.write(_chunk(b"data: %b\n\n" % json.dumps(event).encode()))


def _chunk(raw: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(raw), raw)


# The clients


@dataclass
class Tally:
    events: int = 0
    streams: int = 0
    faults: list[str] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)  # seconds; a sample of one in ten
    firsts: dict[float, float] = field(
        default_factory=dict
    )  # request time: seconds until the first event
    refusals: list[float] | None = None  # seconds until a 529 arrived; None: a 529 is a fault


async def client(port: int, model: str, until: float, tally: Tally) -> None:
    """Run one stream after the other."""
    while time.monotonic() < until:
        try:
            await stream(port, model, tally)
        except (OSError, asyncio.IncompleteReadError) as error:
            tally.faults.append(repr(error))
        tally.streams += 1


async def stream(port: int, model: str, tally: Tally) -> bool:
    """Read one stream to its end. Return False when it was rejected with an allowed 529."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    try:
        return await _read_stream(reader, writer, model, tally)
    finally:
        writer.close()


async def _read_stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, model: str, tally: Tally
) -> bool:
    history = [{"role": "user", "content": "Count."}]
    body = json.dumps({"model": model, "max_tokens": 99, "stream": True, "messages": history})
    head = f"POST /v1/messages HTTP/1.1\r\nhost: g\r\nconnection: close\r\nx-api-key: {KEY}\r\n"
    began = time.monotonic()
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    due, ended, status = 0, False, await reader.readline()
    if b" 529 " in status and tally.refusals is not None and OVERLOADED in await reader.read():
        tally.refusals.append(time.monotonic() - began)
        return False
    async for line in reader:
        ended = ended or b'"message_stop"' in line
        if MARK not in line or b"text_delta" not in line:
            continue
        number, _, at = line.partition(MARK)[2].partition(b'"')[0].partition(b"@")
        now = time.monotonic()
        if int(number) != due:
            tally.faults.append(f"event {int(number)} instead of {due}")
        if due == 0:
            tally.firsts[began] = now - began
        elif due % 10 == 0:
            tally.delays.append(now - float(at))
        due += 1
    tally.events += due
    rate, seconds = parse_model(model)
    if not ended or due != max(1, int(rate * seconds)):
        tally.faults.append(f"{status!r}: {due} events, ended: {ended}")
    return True


def spread(seconds: list[float]) -> str:
    if len(seconds) < 2:
        return "none"
    cuts = quantiles(seconds, n=100)
    return f"p50 {cuts[49] * 1000:.1f}, p99 {cuts[98] * 1000:.1f}"
