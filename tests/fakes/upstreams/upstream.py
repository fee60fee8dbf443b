"""A scripted upstream on a loopback port, from raw asyncio transports.

It uses no HTTP library, because a test must be able to send responses that break HTTP. It plays a
script (``tests.fakes.upstreams.script_steps``), chosen by the model or the path of the request. It
records each request and how its response ended; tests compare these records with the ledger.
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

from .script_steps import Close, Reset, Script, Send, Sleep, Stall, Step, WaitForGate, json_response

Ending = Literal["answered", "client_gone", "closed", "reset", "stopped"]
ENDING_BY_LAST_STEP: dict[type[Step], Ending] = {Reset: "reset", Close: "closed"}
"""The ending of a script that ran to its last step; by default "answered"."""
POLL_S = 0.005
"""The seconds between two checks of a condition or of an event that the test sets."""


@dataclass(slots=True)
class ReceivedRequest:
    """One request that the upstream received, and how its response ended."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case; the last one wins
    body: bytes
    connection: int  # number of its connection, from 0
    sent: int = 0  # bytes of the response written so far
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


class ClientDisconnected(Exception):
    """The gateway closed the connection while the script was still running."""


class Connection(asyncio.Protocol):
    """One TCP connection: read requests, play their scripts, detect a disconnect."""

    def __init__(self, upstream: "ScriptedUpstream", number: int) -> None:
        self._upstream = upstream
        self._number = number
        self._received = bytearray()
        self._changed = asyncio.Event()  # set when bytes arrive or the peer disconnects
        self._writable = asyncio.Event()
        self._disconnected = False
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        only_from = self._upstream.only_from
        if only_from and transport.get_extra_info("peername")[0] != only_from:
            transport.abort()
            return
        self._upstream.add_connection(self)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream.spawn(self._serve())

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._changed.set()

    def eof_received(self) -> bool:
        self._mark_disconnected()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._mark_disconnected()
        self._upstream.remove_connection(self)

    def abort(self) -> None:
        self._transport.abort()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _mark_disconnected(self) -> None:
        self._disconnected = True
        self._changed.set()
        self._writable.set()

    async def _serve(self) -> None:
        with contextlib.suppress(ClientDisconnected):
            while not self._transport.is_closing():
                request = await self._read_request()
                self._upstream.requests.append(request)
                await self._play(request, self._upstream.script_for(request))
        self._transport.close()

    async def _read_request(self) -> ReceivedRequest:
        head = (await self._read_until(b"\r\n\r\n")).decode("latin-1")
        line, *rest = head.rstrip("\r\n").split("\r\n")
        method, path, _ = line.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (each.partition(":") for each in rest)
        }
        if self._upstream.early_response and (
            early := self._upstream.early_response(self._number, headers)
        ):
            self._transport.pause_reading()  # the client cannot send the rest of the body
            self._transport.write(early)
            await self._wait(None)
        if "chunked" in headers.get("transfer-encoding", ""):
            body = await self._read_chunks()
        else:
            body = await self._read_exactly(int(headers.get("content-length", "0")))
        return ReceivedRequest(method, path, headers, body, self._number)

    async def _read_chunks(self) -> bytes:
        body = b""
        while size := int((await self._read_until(b"\r\n")).split(b";")[0], 16):
            body += (await self._read_exactly(size + 2))[:-2]
        await self._read_until(b"\r\n")
        return body

    async def _read_until(self, mark: bytes) -> bytes:
        while (at := self._received.find(mark)) < 0:
            await self._wait_for_bytes()
        return self._take(at + len(mark))

    async def _read_exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            await self._wait_for_bytes()
        return self._take(size)

    def _take(self, size: int) -> bytes:
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    async def _wait_for_bytes(self) -> None:
        if self._disconnected:
            raise ClientDisconnected
        self._changed.clear()
        await self._changed.wait()

    async def _play(self, request: ReceivedRequest, script: Script) -> None:
        ending: Ending = "stopped"  # unless the script ends or the client disconnects
        try:
            for step in script:
                await self._take_step(request, step)
            ending = ENDING_BY_LAST_STEP.get(type(script[-1]), "answered")
        except ClientDisconnected:
            ending = "client_gone"
            raise
        finally:
            request.ended_at = time.monotonic()
            request.ending = ending

    async def _take_step(self, request: ReceivedRequest, step: Step) -> None:
        if self._disconnected:
            raise ClientDisconnected
        match step:
            case Send(raw):
                self._transport.write(raw)
                request.sent += len(raw)
                await self._writable.wait()
                await asyncio.sleep(0)
            case Sleep(seconds):
                await self._wait(seconds)
            case Stall():
                await self._wait(None)
            case WaitForGate(gate):
                while not gate.is_set():
                    await self._wait(POLL_S)
            case Reset():
                sock = self._transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._transport.abort()
            case Close():
                self._transport.close()

    async def _wait(self, seconds: float | None) -> None:
        """Wait ``seconds`` (None: without limit); raise ClientDisconnected if the client disconnects."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._disconnected:
                    self._changed.clear()
                    await self._changed.wait()
        if self._disconnected:
            raise ClientDisconnected


@dataclass(slots=True)
class ScriptedUpstream:
    """An upstream in a thread with its own event loop, for sync and async tests.

    Use it as a context manager. Scripts are set with ``on`` and ``choose``.
    """

    requests: list[ReceivedRequest] = field(default_factory=list)
    port: int = 0
    tls: ssl.SSLContext | None = None
    only_from: str = ""  # the only address of clients; all other connections are reset
    early_response: Callable[[int, dict[str, str]], bytes] | None = None
    """Called with the connection's number and the request's headers; returns bytes to send before
    the request's body is read, or b"" to continue normally."""
    _scripts: dict[str, list[Script]] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _chooser: Callable[[ReceivedRequest], Script | None] | None = None
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
        """The base URL to configure in an OpenAI client."""
        return f"{self.url}/v1"

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def on(self, model_or_path: str, *scripts: Script) -> None:
        """Respond to this model (or path) with these scripts in turn; repeat the last one."""
        self._scripts[model_or_path] = list(scripts)
        self._turns[model_or_path] = 0

    def choose(self, chooser: Callable[[ReceivedRequest], Script | None]) -> None:
        """Let this function choose the script; where it returns None, the scripts of ``on`` apply."""
        self._chooser = chooser

    def script_for(self, request: ReceivedRequest) -> Script:
        if self._chooser is not None and (script := self._chooser(request)) is not None:
            return script
        for name in (request.model, request.path, request.path.partition("?")[0]):
            if scripts := self._scripts.get(name):
                turn = min(self._turns[name], len(scripts) - 1)
                self._turns[name] += 1
                return scripts[turn]
        message = f"no script for model {request.model!r} or path {request.path!r}"
        error = {"message": message, "type": "invalid_request_error", "code": "model_not_found"}
        return json_response({"error": error}, status=404)

    def requests_for(self, model: str) -> list[ReceivedRequest]:
        return [each for each in list(self.requests) if each.model == model]

    def wait_until(
        self, condition: Callable[[Sequence[ReceivedRequest]], object], *, within_s: float = 60
    ) -> None:
        """Poll until ``condition(requests)`` is true; fail after ``within_s`` seconds."""
        deadline = time.monotonic() + within_s
        while not condition(list(self.requests)):
            assert time.monotonic() < deadline, (
                f"condition not met; last requests: {self.requests[-5:]}"
            )
            time.sleep(POLL_S)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop has only weak references to tasks
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
        self._loop.run_until_complete(self._close_all())
        self._loop.close()

    async def _close_all(self) -> None:
        self._server.close()
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for connection in self._open:
            connection.abort()
        while self._open:  # noqa: ASYNC110 - connection_lost runs in this loop
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

    def add_connection(self, connection: Connection) -> None:
        self._open.add(connection)

    def remove_connection(self, connection: Connection) -> None:
        self._open.discard(connection)
