"""An ASGI application for tests of the server, and clients that send raw bytes to it."""

import asyncio
import socket
import threading
from typing import Any

from tests.proxy.config.server_fixtures import DEADLINE_S

START = {"type": "http.response.start", "status": 200, "headers": []}


class Echo:
    """Records requests and echoes bodies; ``/crash``, ``/late`` and others violate ASGI or HTTP."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.may_answer = threading.Event()
        self.left_clients = threading.Semaphore(0)  # counts the disconnects that were received
        self.receive: Any = None  # of the newest request

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests.append(scope)
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": scope["path"]})
            await send({"type": "websocket.close"})
            return
        self.receive = receive
        if scope["path"].startswith("/early"):  # responds before it reads the body
            close = [(b"connection", b"close")] if scope["path"] == "/early_close" else []
            await self.respond(send, b"early", *close, (b"content-length", b"5"))
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left_clients.release()
                return
            body += message["body"]
            if not message["more_body"]:
                break
        await getattr(self, scope["path"].strip("/") or "echo")(send, body)

    async def respond(self, send: Any, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        await send(START | {"headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def echo(self, send: Any, body: bytes) -> None:
        await self.respond(send, body, (b"content-length", b"%d" % len(body)))

    async def chunks(self, send: Any, body: bytes) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": body})

    async def waiting(self, send: Any, body: bytes) -> None:
        await asyncio.to_thread(self.may_answer.wait, DEADLINE_S)
        await self.echo(send, body)

    async def crash(self, send: Any, body: bytes) -> None:
        raise ValueError("requested crash")

    async def late(self, send: Any, body: bytes) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise ValueError("requested crash")

    async def nothing(self, send: Any, body: bytes) -> None: ...

    async def split(self, send: Any, body: bytes) -> None:
        await self.respond(send, b"", (b"x-extra", b"a\r\nset-cookie: stolen=1"))

    async def bare(self, send: Any, body: bytes) -> None:
        await self.respond(send, b"", (b"x-extra", b"a\nset-cookie: stolen=1"))

    async def misnamed(self, send: Any, body: bytes) -> None:
        await self.respond(send, b"", (b"x extra", b"stolen"))

    async def longer(self, send: Any, body: bytes) -> None:
        await self.respond(send, b"four", (b"content-length", b"3"))

    async def shorter(self, send: Any, body: bytes) -> None:
        await self.respond(send, b"four", (b"content-length", b"5"))

    async def backwards(self, send: Any, body: bytes) -> None:
        await send({"type": "http.response.body", "body": b"stolen"})

    async def twice(self, send: Any, body: bytes) -> None:
        await self.respond(send, b"once", (b"content-length", b"4"))
        await send({"type": "http.response.body", "body": b"stolen"})

    async def closing(self, send: Any, body: bytes) -> None:
        await self.respond(send, b"", (b"connection", b"Close"), (b"content-length", b"0"))

    async def paused(self, send: Any, body: bytes) -> None:
        """Send a chunk, then the rest when the test allows it."""
        await send(START)
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await asyncio.to_thread(self.may_answer.wait, DEADLINE_S)
        await send({"type": "http.response.body", "body": body})

    async def flood(self, send: Any, body: bytes) -> None:
        """Send until the client reads too slowly; a send that need not wait ends in one step."""
        await send(START)
        piece = {"type": "http.response.body", "body": body, "more_body": True}
        is_paused = False
        while not is_paused:
            sending = asyncio.ensure_future(send(piece))
            await asyncio.sleep(0)
            is_paused = not sending.done()
        self.may_answer.set()
        await sending
        await send({"type": "http.response.body", "body": b"the end"})

    async def left(self, send: Any, body: bytes) -> None:
        await self.wait_for_disconnect()
        await self.respond(send, b"unread")
        self.may_answer.set()

    async def stream_left(self, send: Any, body: bytes) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await self.wait_for_disconnect()

    async def file_left(self, send: Any, body: bytes) -> None:
        await send(START | {"headers": [(b"content-length", b"9")]})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await self.wait_for_disconnect()

    async def wait_for_disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.left_clients.release()


class CurrentEcho:
    """Passes each request to the ``Echo`` of the running test, so that many tests share a server."""

    def __init__(self) -> None:
        self.echo = Echo()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.echo(scope, receive, send)


def send_raw(port: int, raw: bytes) -> bytes:
    """Send bytes; return what the server sends until it closes."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        received = b""
        try:
            client.sendall(raw)
            while piece := client.recv(65_536):
                received += piece
        except ConnectionError:  # the server rejected the rest
            pass
        return received


def head(*lines: str, path: str = "/", version: str = "1.1") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/{version}", "host: t", *lines, "", ""]).encode()


def receive_all(client: socket.socket) -> bytes:
    """Return what the server sends until it closes or resets the connection."""
    received = b""
    try:
        while piece := client.recv(65_536):
            received += piece
    except ConnectionError:
        pass
    return received
