"""In-memory connections with simulated upstreams that fail by seed.

The gateway's pool, connection class and parser are real; only the socket is replaced.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from proxy.gateway.snapshot.endpoints import Origin
from proxy.gateway.upstream.connections import ConnectionPool, UpstreamConnection
from tests.proxy.gateway import upstream_scripts

from .disk import NUMBER, Disk
from .random_source import SeededRandom

Ending = Literal["end", "fin", "rst", "stall", "lingers"]
EVENTS = {
    "chat": upstream_scripts.chat_events,
    "responses": upstream_scripts.responses_events,
    "anthropic": upstream_scripts.claude_events,
}
EVENTS_AFTER_COMPLETION = {"chat": 2, "responses": 0, "anthropic": 0}
"""Events after the one that completes a response: in Chat the usage and ``[DONE]``."""
TOKENS = (12, 5)  # that these answers report
ERRORS = (400, 401, 404, 413, 429, 500, 503, 529)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class ResponsePlan:
    """The upstream's response to one request: pieces with pauses before them, then an ending."""

    pieces: list[tuple[float, bytes]]
    end: Ending
    complete: bool  # the response is complete


@dataclass
class UpstreamCall:
    """One request that an upstream received."""

    number: int
    plan: ResponsePlan
    finished: bool = False
    closed_at: float | None = None


@dataclass
class Transport(asyncio.Transport):
    """The gateway's side of a connection."""

    loop: asyncio.AbstractEventLoop
    connection: UpstreamConnection
    peer: "SimulatedPeer"
    _closing: bool = False
    _paused: bool = False
    _buffered: list[bytes] = field(default_factory=list)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default  # there is no socket

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write(self, data: Any) -> None:
        if not self._closing:
            self.loop.call_soon(self.peer.data_received, bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        buffered, self._buffered = self._buffered, []
        for raw in buffered:
            self.arrive(raw)

    def arrive(self, raw: bytes) -> None:
        if self._paused:
            self._buffered.append(raw)
        elif not self._closing:
            self.connection.data_received(raw)

    def abort(self) -> None:
        self.close_with_error(None)

    close = abort

    def close_with_error(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self.peer.connection_lost()
            self.loop.call_soon(self.connection.connection_lost, error)


class SimulatedPeer:
    """The upstream's side: receive a request, send the planned response, wait for the next request."""

    def __init__(self, upstream: "Upstream", connection: UpstreamConnection) -> None:
        self._upstream = upstream
        self._loop = asyncio.get_running_loop()
        self.transport = Transport(self._loop, connection, self)
        self._received = bytearray()
        self._call: UpstreamCall | None = None
        self._timer: asyncio.TimerHandle | None = None

    def data_received(self, raw: bytes) -> None:
        self._received += raw
        head, match, body = bytes(self._received).partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if not match or len(body) < int(length) or self.transport.is_closing():
            return
        del self._received[: len(head) + 4 + int(length)]
        self._call = self._upstream.record_call(head, body)
        self._continue(iter(self._call.plan.pieces))

    def connection_lost(self) -> None:
        self._upstream.peers.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None and self._call.closed_at is None:
            self._call.closed_at = self._loop.time()

    def _continue(self, pieces: Any) -> None:
        step = next(pieces, None)
        if step is None:
            self._end()
        else:
            self._timer = self._loop.call_later(step[0], self._send, step[1], pieces)

    def _send(self, raw: bytes, pieces: Any) -> None:
        if not self.transport.is_closing():
            self.transport.arrive(raw)
            self._continue(pieces)

    def _end(self) -> None:
        assert self._call is not None
        self._call.finished = True
        match self._call.plan.end:
            case "fin":
                self.transport.close_with_error(None)
            case "rst":
                self.transport.close_with_error(ConnectionResetError("reset by chance"))
            case "end":
                self._call = None  # the connection waits for the next request


class Upstream:
    """All upstreams of one simulated gateway, with random behavior."""

    def __init__(self, rng: SeededRandom, disk: Disk) -> None:
        self.rng, self.disk = rng, disk
        self.peers: set[SimulatedPeer] = set()
        self.calls: list[UpstreamCall] = []
        self.faults: list[str] = []

    def record_call(self, head: bytes, body: bytes) -> UpstreamCall:
        match = NUMBER.search(body)
        assert match, body
        number = int(match[1])
        if number not in self.disk.opened:
            self.faults.append(
                f"request {number} reached an upstream before its record was on the disk"
            )
        dialect = {b"/v1/chat/completions": "chat", b"/v1/responses": "responses"}.get(
            head.split(b" ")[1].partition(b"?")[0], "anthropic"
        )
        call = UpstreamCall(number, self._plan(dialect))
        self.calls.append(call)
        return call

    def _plan(self, dialect: str) -> ResponsePlan:
        rng = self.rng
        if rng.buggify("upstream.error"):
            return self._error()
        if rng.buggify("upstream.never answers", 0.05):
            return ResponsePlan([], rng.pick(["stall", "fin", "rst"]), complete=False)
        events = EVENTS[dialect]([f"word {n} " for n in range(rng.randint(1, 30))])
        raw = b"".join(events)
        # After this many bytes, without the last blank line, the response is complete.
        complete_length = (
            len(b"".join(events[: len(events) - EVENTS_AFTER_COMPLETION[dialect]])) - 2
        )
        complete, end = True, "end"
        if rng.buggify("upstream.breaks off", 0.2):
            raw = raw[: rng.randrange(len(raw))]
            complete = len(raw) >= complete_length
            end = rng.pick(["fin", "rst", "stall", "end"])
        elif rng.buggify("upstream.garbles", 0.05):
            position = _inside_data(raw, rng.randrange(len(raw)))
            raw, complete = raw[:position] + b"\xff{" + raw[position:], position >= complete_length
        elif rng.buggify("upstream.lingers", 0.05):
            end = "lingers"
        chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in rng.pieces(raw, 40) if piece]
        pieces = [HEAD, *chunks, *([b"0\r\n\r\n"] if end == "end" else [])]
        return ResponsePlan([(self._pause(), piece) for piece in pieces], end, complete)  # type: ignore[arg-type]  # of those

    def _error(self) -> ResponsePlan:
        status = self.rng.pick(ERRORS)
        body = b'{"error": {"message": "no", "type": "x", "code": null}}'
        more = b"retry-after: 3\r\n" if self.rng.random() < 0.5 else b""
        head = b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
        return ResponsePlan(
            [(self._pause(), head % (status, more, len(body)) + body)], "end", complete=False
        )

    def _pause(self) -> float:
        if self.rng.buggify("upstream.is silent for long", 0.03):
            return self.rng.uniform(10, 45)
        return self.rng.expovariate(2)


def _inside_data(raw: bytes, position: int) -> int:
    """Return the position of the next JSON value; a changed field name would not be a fault."""
    start = raw.find(b"data: {", position)
    return len(raw) if start < 0 else start + len(b"data: {")


class SimulatedWire(UpstreamConnection):
    """A connection without a socket; bytes from the upstream arrive immediately."""

    def has_arrived(self) -> bool:
        return False


class SimulatedPool(ConnectionPool):
    """The gateway's pool; its new connections go to ``upstream``, fail or hang."""

    def __init__(self, upstream: Upstream) -> None:
        super().__init__(lambda: None)  # type: ignore[arg-type, return-value]  # no TLS here
        self._upstream = upstream

    async def _open(self, origin: Origin) -> UpstreamConnection:
        rng = self._upstream.rng
        if rng.buggify("connect.is refused"):
            raise ConnectionRefusedError
        await asyncio.sleep(3_600 if rng.buggify("connect.hangs", 0.05) else rng.random())
        connection = SimulatedWire()
        peer = SimulatedPeer(self._upstream, connection)
        self._upstream.peers.add(peer)
        connection.connection_made(peer.transport)
        return connection
