"""Connections that are two objects in memory, and an upstream at their other end that lies by seed.

The gateway's side is its own: the pool, the wire, the parser. Only the socket is missing.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from proxy.gateway.connection_pool import Pool
from proxy.gateway.wire import Origin, Wire
from tests.proxy.gateway import scripts

from .chance import Chance
from .disk import NUMBER, Disk

End = Literal["end", "fin", "rst", "stall", "lingers"]
EVENTS = {
    "chat": scripts.chat_events,
    "responses": scripts.responses_events,
    "anthropic": scripts.claude_events,
}
AFTER_THE_LAST = {"chat": 2, "responses": 0, "anthropic": 0}
"""Events that follow the one after which an answer is whole: of Chat its usage and ``[DONE]``."""
TOKENS = (12, 5)  # that these answers report
ERRORS = (400, 401, 404, 413, 429, 500, 503, 529)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Play:
    """What the upstream does with one request: says these pieces after these pauses, then ends."""

    pieces: list[tuple[float, bytes]]
    end: End
    well: bool  # its answer is whole


@dataclass
class Called:
    """One request that reached an upstream."""

    number: int
    play: Play
    said_all: bool = False
    closed_at: float | None = None


@dataclass
class Transport(asyncio.Transport):
    """The gateway's end of a connection."""

    loop: asyncio.AbstractEventLoop
    wire: Wire
    line: "Line"
    _closing: bool = False
    _paused: bool = False
    _held: list[bytes] = field(default_factory=list)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write(self, data: Any) -> None:
        if not self._closing:
            self.loop.call_soon(self.line.heard, bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        held, self._held = self._held, []
        for raw in held:
            self.arrive(raw)

    def arrive(self, raw: bytes) -> None:
        if self._paused:
            self._held.append(raw)
        elif not self._closing:
            self.wire.data_received(raw)

    def abort(self) -> None:
        self.lost(None)

    close = abort

    def lost(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self.line.gone()
            self.loop.call_soon(self.wire.connection_lost, error)


class Line:
    """The upstream's end: hears a request, plays, hears the next one."""

    def __init__(self, upstream: "Upstream", wire: Wire) -> None:
        self._upstream = upstream
        self._loop = asyncio.get_running_loop()
        self.transport = Transport(self._loop, wire, self)
        self._heard = bytearray()
        self._called: Called | None = None
        self._timer: asyncio.TimerHandle | None = None

    def heard(self, raw: bytes) -> None:
        self._heard += raw
        head, found, body = bytes(self._heard).partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if not found or len(body) < int(length) or self.transport.is_closing():
            return
        del self._heard[: len(head) + 4 + int(length)]
        self._called = self._upstream.called(head, body)
        self._go_on(iter(self._called.play.pieces))

    def gone(self) -> None:
        self._upstream.lines.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._called is not None and self._called.closed_at is None:
            self._called.closed_at = self._loop.time()

    def _go_on(self, pieces: Any) -> None:
        step = next(pieces, None)
        if step is None:
            self._end()
        else:
            self._timer = self._loop.call_later(step[0], self._say, step[1], pieces)

    def _say(self, raw: bytes, pieces: Any) -> None:
        if not self.transport.is_closing():
            self.transport.arrive(raw)
            self._go_on(pieces)

    def _end(self) -> None:
        assert self._called is not None
        self._called.said_all = True
        match self._called.play.end:
            case "fin":
                self.transport.lost(None)
            case "rst":
                self.transport.lost(ConnectionResetError("reset by chance"))
            case "end":
                self._called = None  # the connection waits for another request


class Upstream:
    """All upstreams of a world, by chance."""

    def __init__(self, chance: Chance, disk: Disk) -> None:
        self.chance, self.disk = chance, disk
        self.lines: set[Line] = set()
        self.calls: list[Called] = []
        self.faults: list[str] = []

    def called(self, head: bytes, body: bytes) -> Called:
        found = NUMBER.search(body)
        assert found, body
        number = int(found[1])
        if number not in self.disk.opened:
            self.faults.append(f"request {number} was dialled before its record was on the disk")
        dialect = {b"/v1/chat/completions": "chat", b"/v1/responses": "responses"}.get(
            head.split(b" ")[1].partition(b"?")[0], "anthropic"
        )
        call = Called(number, self._play(dialect))
        self.calls.append(call)
        return call

    def _play(self, dialect: str) -> Play:
        chance = self.chance
        if chance.buggify("upstream.error"):
            return self._error()
        if chance.buggify("upstream.never answers", 0.05):
            return Play([], chance.one_of(["stall", "fin", "rst"]), well=False)
        events = EVENTS[dialect]([f"word {n} " for n in range(chance.randint(1, 30))])
        raw = b"".join(events)
        # Who has said this much, less the blank line behind it, has said that the answer is whole.
        enough = len(b"".join(events[: len(events) - AFTER_THE_LAST[dialect]])) - 2
        well, end = True, "end"
        if chance.buggify("upstream.breaks off", 0.2):
            raw = raw[: chance.randrange(len(raw))]
            well = len(raw) >= enough
            end = chance.one_of(["fin", "rst", "stall", "end"])
        elif chance.buggify("upstream.garbles", 0.05):
            at = _inside_data(raw, chance.randrange(len(raw)))
            raw, well = raw[:at] + b"\xff{" + raw[at:], at >= enough
        elif chance.buggify("upstream.lingers", 0.05):
            end = "lingers"
        said = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in chance.pieces(raw, 40) if piece]
        pieces = [HEAD, *said, *([b"0\r\n\r\n"] if end == "end" else [])]
        return Play([(self._pause(), piece) for piece in pieces], end, well)  # type: ignore[arg-type]  # of those

    def _error(self) -> Play:
        status = self.chance.one_of(ERRORS)
        body = b'{"error": {"message": "no", "type": "x", "code": null}}'
        more = b"retry-after: 3\r\n" if self.chance.random() < 0.5 else b""
        head = b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
        return Play([(self._pause(), head % (status, more, len(body)) + body)], "end", well=False)

    def _pause(self) -> float:
        if self.chance.buggify("upstream.is silent for long", 0.03):
            return self.chance.uniform(10, 45)
        return self.chance.expovariate(2)


def _inside_data(raw: bytes, at: int) -> int:
    """A place from there on at which JSON is garbled; a garbled name of a field would be no fault."""
    begin = raw.find(b"data: {", at)
    return len(raw) if begin < 0 else begin + len(b"data: {")


class SimulatedWire(Wire):
    """A connection without a socket: what its upstream sends arrives at once."""

    def has_arrived(self) -> bool:
        return False


class SimulatedPool(Pool):
    """The gateway's pool; its new connections lead to ``upstream``, or nowhere."""

    def __init__(self, upstream: Upstream) -> None:
        super().__init__(lambda: None)  # type: ignore[arg-type, return-value]  # no TLS in here
        self._upstream = upstream

    async def _connected(self, origin: Origin) -> Wire:
        chance = self._upstream.chance
        if chance.buggify("connect.is refused"):
            raise ConnectionRefusedError
        await asyncio.sleep(3_600 if chance.buggify("connect.hangs", 0.05) else chance.random())
        wire = SimulatedWire()
        line = Line(self._upstream, wire)
        self._upstream.lines.add(line)
        wire.connection_made(line.transport)
        return wire
