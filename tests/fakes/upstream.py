"""A scripted upstream on a loopback port, from raw asyncio transports.

No HTTP library stands between a script and the wire, because an upstream must be able to lie. It
plays a script (``tests.fakes.steps``) chosen by the model or the path that was asked for, and
keeps what it was asked and how each connection ended: that tally is a test's oracle.
"""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from .steps import Close, Hold, Reset, Script, Send, Sleep, Stall, Step, json_answer

Ending = Literal["answered", "client_gone", "closed", "reset", "stopped"]
LAST_STEPS: dict[type[Step], Ending] = {Reset: "reset", Close: "closed"}
"""How an answer ends that was told to its end; a client that has all of it may leave at once."""
GLANCE_S = 0.005
"""How often a gate is looked at, and a tally."""


@dataclass(slots=True)
class Asked:
    """One request that reached the upstream, and what became of its answer."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case; the last one wins
    body: bytes
    connection: int  # which connection it came on, from 0
    sent: int = 0  # bytes of the answer that left
    ending: Ending | None = None
    ended_at: float = 0.0  # time.monotonic()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def model(self) -> str:
        try:
            return str(self.json["model"])
        except (ValueError, TypeError, LookupError):
            return ""


class ClientGone(Exception):
    """The gateway hung up while the script was still playing."""


class Connection(asyncio.Protocol):
    """One TCP connection: reads requests, plays their scripts, notices when the peer leaves."""

    def __init__(self, upstream: "ScriptedUpstream", number: int) -> None:
        self._upstream = upstream
        self._number = number
        self._received = bytearray()
        self._news = asyncio.Event()  # bytes came, or the peer left
        self._writable = asyncio.Event()
        self._gone = False
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._upstream.opened(self)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream.spawn(self._serve())

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._news.set()

    def eof_received(self) -> bool:
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._upstream.forget(self)

    def hang_up(self) -> None:
        self._transport.abort()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _leave(self) -> None:
        self._gone = True
        self._news.set()
        self._writable.set()

    async def _serve(self) -> None:
        with contextlib.suppress(ClientGone):
            while not self._transport.is_closing():
                asked = await self._read_request()
                self._upstream.asked.append(asked)
                await self._play(asked, self._upstream.script_for(asked))
        self._transport.close()

    async def _read_request(self) -> Asked:
        head = (await self._until(b"\r\n\r\n")).decode("latin-1")
        line, *rest = head.rstrip("\r\n").split("\r\n")
        method, path, _ = line.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (each.partition(":") for each in rest)
        }
        if self._upstream.at_head and (early := self._upstream.at_head(self._number, headers)):
            self._transport.pause_reading()  # the rest of the body stays with the client
            self._transport.write(early)
            await self._wait(None)
        if "chunked" in headers.get("transfer-encoding", ""):
            body = await self._read_chunks()
        else:
            body = await self._exactly(int(headers.get("content-length", "0")))
        return Asked(method, path, headers, body, self._number)

    async def _read_chunks(self) -> bytes:
        body = b""
        while size := int((await self._until(b"\r\n")).split(b";")[0], 16):
            body += (await self._exactly(size + 2))[:-2]
        await self._until(b"\r\n")
        return body

    async def _until(self, mark: bytes) -> bytes:
        while (at := self._received.find(mark)) < 0:
            await self._more()
        return self._take(at + len(mark))

    async def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            await self._more()
        return self._take(size)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    async def _more(self) -> None:
        if self._gone:
            raise ClientGone
        self._news.clear()
        await self._news.wait()

    async def _play(self, asked: Asked, script: Script) -> None:
        ending: Ending = "stopped"  # unless we get to know better
        try:
            for step in script:
                await self._take_step(asked, step)
            ending = LAST_STEPS.get(type(script[-1]), "answered")
        except ClientGone:
            ending = "client_gone"
            raise
        finally:
            asked.ended_at = time.monotonic()
            asked.ending = ending

    async def _take_step(self, asked: Asked, step: Step) -> None:
        if self._gone:
            raise ClientGone
        match step:
            case Send(raw):
                self._transport.write(raw)
                asked.sent += len(raw)
                await self._writable.wait()
                await asyncio.sleep(0)
            case Sleep(seconds):
                await self._wait(seconds)
            case Stall():
                await self._wait(None)
            case Hold(gate):
                while not gate.is_set():
                    await self._wait(GLANCE_S)
            case Reset():
                sock = self._transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._transport.abort()
            case Close():
                self._transport.close()

    async def _wait(self, seconds: float | None) -> None:
        """Wait, but no longer than the client stays."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._gone:
                    self._news.clear()
                    await self._news.wait()
        if self._gone:
            raise ClientGone


@dataclass(slots=True)
class ScriptedUpstream:
    """Runs in a thread with an event loop of its own, so that sync and async tests can use it."""

    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    tls: ssl.SSLContext | None = None
    at_head: Callable[[int, dict[str, str]], bytes] | None = None
    """Asked with a connection's number and a request's headers: what to send before the body."""
    _scripts: dict[str, list[Script]] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _chooser: Callable[[Asked], Script | None] | None = None
    _connections: int = 0
    _open: set[Connection] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None
    _server: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client calls its base URL."""
        return f"{self.url}/v1"

    @property
    def connected(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    def on(self, model_or_path: str, *scripts: Script) -> None:
        """Answer this model (or path) with these scripts in turn; the last one is repeated."""
        self._scripts[model_or_path] = list(scripts)
        self._turns[model_or_path] = 0

    def choose(self, chooser: Callable[[Asked], Script | None]) -> None:
        """Ask this function first; None falls back to what ``on`` was told."""
        self._chooser = chooser

    def script_for(self, asked: Asked) -> Script:
        if self._chooser is not None and (script := self._chooser(asked)) is not None:
            return script
        for name in (asked.model, asked.path, asked.path.partition("?")[0]):
            if scripts := self._scripts.get(name):
                turn = min(self._turns[name], len(scripts) - 1)
                self._turns[name] += 1
                return scripts[turn]
        message = f"no script for model {asked.model!r} or path {asked.path!r}"
        error = {"message": message, "type": "invalid_request_error", "code": "model_not_found"}
        return json_answer({"error": error}, status=404)

    def asked_for(self, model: str) -> list[Asked]:
        return [each for each in list(self.asked) if each.model == model]

    def wait_until(
        self, holds: Callable[[Sequence[Asked]], object], *, within_s: float = 60
    ) -> None:
        """Poll the tally until ``holds`` is true; what it showed last is in the failure."""
        deadline = time.monotonic() + within_s
        while not holds(list(self.asked)):
            assert time.monotonic() < deadline, f"never fitted; asked last: {self.asked[-5:]}"
            time.sleep(GLANCE_S)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)

    def __enter__(self) -> Self:
        listening = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening,), daemon=True)
        self._thread.start()
        assert listening.wait(60), "the scripted upstream did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join(10)

    def _run(self, listening: threading.Event) -> None:
        self._loop.run_until_complete(self._listen())
        listening.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._hang_up())
        self._loop.close()

    async def _hang_up(self) -> None:
        self._server.close()
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for connection in self._open:
            connection.hang_up()
        while self._open:  # noqa: ASYNC110 - connection_lost needs a turn of this very loop
            await asyncio.sleep(0)

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(
            self._accept, "127.0.0.1", 0, backlog=512, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def _accept(self) -> Connection:
        connection = Connection(self, self._connections)
        self._connections += 1
        return connection

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)

    def forget(self, connection: Connection) -> None:
        self._open.discard(connection)
