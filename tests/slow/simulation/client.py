"""A simulated client of the gateway's ASGI application that may be slow or disconnect."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from proxy.gateway.endpoints.messages import MessagesConsumer
from tests.fakes.upstreams.grammar import faults_of_bytes, faults_of_gaps

from .random_source import SeededRandom

SECRET = "sk-br-" + "simu" * 12
PING_S = 15.0
SLACK_S = 0.6  # deadlines are checked twice a second


@dataclass
class Client:
    """One client with one request; ``faults`` checks what it received."""

    number: int
    dialect: str
    streaming: bool
    start_s: float
    disconnects_after: float | None  # seconds
    max_delay_s: float  # maximum delay for each piece; 0: none
    stops_reading: bool
    status: int = 0
    body: bytes = b""
    complete: bool = False  # the last byte arrived
    disconnected_at: float | None = None
    ended_at: float | None = None
    killed: bool = False  # the process was killed during the request
    times: list[float] = field(default_factory=list)

    @classmethod
    def by(cls, rng: SeededRandom, number: int, lasting: float) -> "Client":
        return cls(
            number,
            dialect=rng.pick(["chat", "responses", "anthropic"]),
            streaming=rng.random() < 0.8,
            start_s=rng.uniform(0, lasting),
            disconnects_after=rng.expovariate(0.1) if rng.buggify("client.leaves", 0.3) else None,
            max_delay_s=rng.uniform(0.1, 5) if rng.buggify("client.is slow", 0.2) else 0.0,
            stops_reading=rng.buggify("client.stops reading", 0.1),
        )

    async def run(self, rng: SeededRandom) -> None:
        await asyncio.sleep(self.start_s)
        loop = asyncio.get_running_loop()
        messages = [{"role": "user", "content": f"This is request number {self.number}."}]
        body = json.dumps({"model": f"{self.dialect}-x", "max_tokens": 99, "messages": messages,
                           "stream": self.streaming}).encode()  # fmt: skip
        events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        events.put_nowait({"type": "http.request", "body": body, "more_body": False})
        disconnected = asyncio.Event()  # a disconnected client does not block the writer
        disconnect_timer = None
        if self.disconnects_after is not None:
            disconnect_timer = loop.call_later(
                self.disconnects_after, self._disconnect, events, disconnected
            )

        async def send(message: dict[str, Any]) -> None:
            if self.max_delay_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rng.uniform(0, self.max_delay_s)):
                        await disconnected.wait()
            if self.stops_reading and self.body:
                await disconnected.wait()
            self._receive(message, loop.time())

        await MessagesConsumer()(_scope(len(body)), events.get, send)
        disconnected.set()  # the server closes the connection, which releases blocked writers
        self.ended_at = loop.time()
        if disconnect_timer is not None:
            disconnect_timer.cancel()

    def _disconnect(
        self, events: "asyncio.Queue[dict[str, Any]]", disconnected: asyncio.Event
    ) -> None:
        self.disconnected_at = asyncio.get_running_loop().time()
        disconnected.set()
        events.put_nowait({"type": "http.disconnect"})

    def _receive(self, message: dict[str, Any], now: float) -> None:
        if self.disconnected_at is not None or self.killed:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.body += message["body"]
        self.times.append(now)
        self.complete = self.complete or not message["more_body"]

    def faults(self) -> list[str]:
        """I3: a complete response or a typed error, unless it disconnected, was killed or did not read."""
        if self.disconnected_at is not None or self.killed or self.stops_reading:
            return []
        if not self.complete:
            return [f"{self.number}: neither a response nor an error: {self.status} {self.body!r}"]
        if self.status != 200 or not self.streaming:
            kind = _type_of(self.body)
            expected = "message" if self.status == 200 else "error"
            return [] if kind == expected else [f"{self.number}: {self.status} with {self.body!r}"]
        try:
            faults = faults_of_bytes(self.body)
        except UnicodeDecodeError as error:
            faults = [f"I10: {error}"]
        if b"event: error" in self.body:  # a block that an Anthropic upstream started is passed on
            faults = [fault for fault in faults if "an empty text block" not in fault]
        if not self.max_delay_s:
            faults += faults_of_gaps(self.times, longest_s=PING_S + SLACK_S)
        return [f"{self.number}: {fault}" for fault in faults]

    @property
    def saw_complete_response(self) -> bool:
        """Whether the client received a complete response."""
        if not self.streaming:
            return self.complete and self.status == 200
        return b"event: message_stop" in self.body


def _type_of(body: bytes) -> str:
    """Return the type of a complete JSON body; empty if it has none."""
    try:
        return str(json.loads(body).get("type"))
    except (ValueError, AttributeError):
        return ""


def _scope(length: int) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/messages",
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "headers": [
            (b"x-api-key", SECRET.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % length),
        ],
    }
