"""Django's side of the server within bounds: admin, reports and sign-in, which anybody may call.

One of its answers takes 1 to 5 ms of CPU, nearly all of it in Django's own handler, and a thread.
So a worker makes few at a time, takes bodies within a size and a time, and answers what is the same
for everybody from memory.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.conf import settings

from .conf import conf
from .gateway.body_memory import body_memory
from .gateway.limits import Bucket
from .gateway.refusals import Refusal, too_busy, too_large, too_slow
from .ulids import new_ulid

AT_ONCE: Final = 16
"""Answers that a worker makes at a time, up to their first byte. Each is a thread, which shares the
interpreter with the streams: 16 of them delay these by 80 ms at most."""
MOST_WAITING: Final = 200
"""Requests that wait for their turn; one more is refused."""
A_MINUTE: Final = {
    ("POST", "/admin/login/"): 30,  # each takes 0.5 s of CPU, for the password's hash
    ("GET", "/sign-in/"): 300,  # each is a row, for the provider's answer
}
"""Of what anybody may do and costs most, in one worker; so many may come at once."""
PUBLIC: Final = frozenset({"/api/v1/schema/", "/api/v1/docs/"})
"""Pages that are the same for everybody until the gateway starts again."""
MOST_KEPT: Final = 16
"""Of these, as each scheme and host got them: a host may be one of many."""

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Key = tuple[str, str, bytes]


class BoundedPages:
    """ASGI application in front of Django's."""

    def __init__(self, django: Any) -> None:
        self._django = django
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )
        self._waiting = 0
        self._room = {each: Bucket(n, n, time.monotonic()) for each, n in A_MINUTE.items()}
        self._kept: dict[Key, tuple[dict[str, Any], bytes]] = {}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        key = _public_key(scope)
        if key in self._kept:
            start, body = self._kept[key]
            await send(start)
            shown = b"" if scope["method"] == "HEAD" else body
            await send({"type": "http.response.body", "body": shown})
            return
        held = 0
        try:
            self._take_room(scope["method"], scope["path"])
            async with asyncio.timeout(conf.body_timeout_s):
                body = await _body(scope, receive)
            held = body_memory.change(0, len(body))
            if self._waiting >= MOST_WAITING:
                raise too_busy("pages")
            if key is not None and scope["method"] == "GET":
                send = _recording(send, key, self._kept)
            await self._in_turn(scope, _replayed(body, receive), send)
        except TimeoutError:
            await _refuse(too_slow(), send)
        except Refusal as refusal:
            await _refuse(refusal, send)
        except ClientGone:
            pass
        finally:
            body_memory.change(held, 0)

    def _take_room(self, method: str, path: str) -> None:
        """Raise Refusal 429 where more than ``A_MINUTE`` ask for one thing."""
        room = self._room.get((method, path))
        if room is None:
            return
        room.refill(time.monotonic())
        if room.left < 1:
            seconds = max(1, round(room.seconds_until(1)))
            raise Refusal(
                429,
                "rate_limit_error",
                f"too many sign-ins at once; try again in {seconds} s",
                {"retry-after": str(seconds)},
            )
        room.left -= 1

    async def _in_turn(self, scope: Any, receive: Receive, send: Send) -> None:
        turns = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
        self._waiting += 1
        try:
            await turns.acquire()
        finally:
            self._waiting -= 1
        taken = True

        async def beginning(message: dict[str, Any]) -> None:
            nonlocal taken
            if taken:  # what follows waits for the client, who may read slowly
                taken = False
                turns.release()
            await send(message)

        try:
            await self._django(scope, receive, beginning)
        finally:
            if taken:
                turns.release()


class ClientGone(Exception):
    """The client left before its body was here."""


def _public_key(scope: Any) -> Key | None:
    """Return what a public page is kept by; None for any other request."""
    if scope["path"] not in PUBLIC or scope["method"] not in {"GET", "HEAD"}:
        return None
    if scope.get("query_string"):
        return None
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    return (scope["path"], scope.get("scheme", "http"), hosts[0]) if len(hosts) == 1 else None


async def _body(scope: Any, receive: Receive) -> bytes:
    """Return the whole body. Raises Refusal 413, ClientGone."""
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > most:
            raise too_large(most)
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > most:
            raise too_large(most)
        if not message.get("more_body"):
            return b"".join(pieces)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives the body at once, then what the server says."""
    given = False

    async def replayed() -> dict[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _recording(send: Send, key: Key, kept: dict[Key, tuple[dict[str, Any], bytes]]) -> Send:
    """Return a ``send`` that keeps a sound whole answer."""
    start: dict[str, Any] = {}
    pieces: list[bytes] = []

    async def recording(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            pieces.append(message.get("body", b""))
            whole = start.get("status") == 200 and not message.get("more_body")
            if whole and len(kept) < MOST_KEPT:
                kept[key] = ({**start}, b"".join(pieces))
        await send(message)

    return recording


async def _refuse(refusal: Refusal, send: Send) -> None:
    request_id = f"req_{new_ulid()}"
    body = refusal.body(request_id)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"request-id", request_id.encode()),
        *((name.encode(), text.encode()) for name, text in refusal.headers.items()),
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
