"""A client of the gateway's ASGI application: patient, hasty, slow, or gone."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from proxy.gateway.consumer import MessagesConsumer
from tests.fakes.grammar import faults_of_bytes, faults_of_gaps

from .chance import Chance

SECRET = "sk-br-" + "simu" * 12
PING_S = 15.0
SLACK_S = 0.6  # a watch looks twice a second


@dataclass
class Client:
    """``begin`` is when it asks. What it saw is what ``faults`` judges."""

    number: int
    dialect: str
    streaming: bool
    begin: float
    leaves_after: float | None  # seconds
    slow: float  # at most so long for each piece; 0: at once
    stops_reading: bool
    status: int = 0
    body: bytes = b""
    whole: bool = False  # the last byte came
    left_at: float | None = None
    ended_at: float | None = None
    cut: bool = False  # the process died meanwhile
    times: list[float] = field(default_factory=list)

    @classmethod
    def by(cls, chance: Chance, number: int, lasting: float) -> "Client":
        return cls(
            number,
            dialect=chance.one_of(["chat", "responses", "anthropic"]),
            streaming=chance.random() < 0.8,
            begin=chance.uniform(0, lasting),
            leaves_after=chance.expovariate(0.1) if chance.buggify("client.leaves", 0.3) else None,
            slow=chance.uniform(0.1, 5) if chance.buggify("client.is slow", 0.2) else 0.0,
            stops_reading=chance.buggify("client.stops reading", 0.1),
        )

    async def run(self, chance: Chance) -> None:
        await asyncio.sleep(self.begin)
        loop = asyncio.get_running_loop()
        asked = [{"role": "user", "content": f"This is request number {self.number}."}]
        body = json.dumps({"model": f"{self.dialect}-x", "max_tokens": 99, "messages": asked,
                           "stream": self.streaming}).encode()  # fmt: skip
        news: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        news.put_nowait({"type": "http.request", "body": body, "more_body": False})
        gone, leaving = asyncio.Event(), None  # who is gone keeps no writer waiting
        if self.leaves_after is not None:
            leaving = loop.call_later(self.leaves_after, self._leave, news, gone)

        async def send(message: dict[str, Any]) -> None:
            if self.slow:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(chance.uniform(0, self.slow)):
                        await gone.wait()
            if self.stops_reading and self.body:
                await gone.wait()
            self._take(message, loop.time())

        await MessagesConsumer()(_scope(len(body)), news.get, send)
        gone.set()  # the server ends the connection, and with it what waits for its reader
        self.ended_at = loop.time()
        if leaving is not None:
            leaving.cancel()

    def _leave(self, news: "asyncio.Queue[dict[str, Any]]", gone: asyncio.Event) -> None:
        self.left_at = asyncio.get_running_loop().time()
        gone.set()
        news.put_nowait({"type": "http.disconnect"})

    def _take(self, message: dict[str, Any], now: float) -> None:
        if self.left_at is not None or self.cut:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.body += message["body"]
        self.times.append(now)
        self.whole = self.whole or not message["more_body"]

    def faults(self) -> list[str]:
        """I3: a whole answer or a typed error, unless it left, died or did not read."""
        if self.left_at is not None or self.cut or self.stops_reading:
            return []
        if not self.whole:
            return [f"{self.number}: neither answered nor refused: {self.status} {self.body!r}"]
        if self.status != 200 or not self.streaming:
            kind = _type_of(self.body)
            wanted = "message" if self.status == 200 else "error"
            return [] if kind == wanted else [f"{self.number}: {self.status} with {self.body!r}"]
        try:
            told = faults_of_bytes(self.body)
        except UnicodeDecodeError as error:
            told = [f"I10: {error}"]
        if b"event: error" in self.body:  # what an upstream of our kind began is handed on
            told = [fault for fault in told if "an empty text block" not in fault]
        if not self.slow:
            told += faults_of_gaps(self.times, longest_s=PING_S + SLACK_S)
        return [f"{self.number}: {fault}" for fault in told]

    @property
    def heard_all(self) -> bool:
        """It was told that the answer is whole."""
        if not self.streaming:
            return self.whole and self.status == 200
        return b"event: message_stop" in self.body


def _type_of(body: bytes) -> str:
    """Of a whole answer; empty where it is none."""
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
        "extensions": {},
        "headers": [
            (b"x-api-key", SECRET.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % length),
        ],
    }
