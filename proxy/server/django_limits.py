"""Limit the requests to Django: admin, reports and sign-in, which any client may call.

A response of Django takes a thread and 1 to 5 ms of CPU, nearly all of it in Django's own handler.
So a worker limits concurrent responses and the size and time of request bodies, and serves pages
that are the same for all users from a cache.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.conf import settings

from proxy.conf import conf
from proxy.gateway.admission.rate_limits import Bucket
from proxy.gateway.http.errors import HttpError, too_busy, too_large, too_slow
from proxy.gateway.http.request_body import body_memory
from proxy.ids import new_ulid

MAX_CONCURRENT: Final = 16
"""Maximum of concurrent responses in a worker, each counted until its first byte. Each takes a
thread, and the threads share the interpreter with the streams: 16 threads delay a stream by at most
80 ms."""
MAX_WAITING: Final = 200
"""Maximum of requests that wait for a slot; a further one is rejected."""
MAX_PER_MINUTE: Final = {
    ("POST", "/admin/login/"): 30,  # each takes 0.5 s of CPU to hash the password
    ("GET", "/sign-in/"): 300,  # each stores a row for the provider's response
}
"""Maximum of requests a minute in one worker, for the most expensive pages without sign-in. All of
them may come at once."""
PUBLIC: Final = frozenset({"/api/v1/schema/", "/api/v1/docs/"})
"""Pages that are the same for all users until the gateway restarts."""
MAX_CACHED: Final = 16
"""Maximum of cached responses. The scheme and the host are part of the key, and a client may send
any host."""

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Key = tuple[str, str, bytes]


class BoundedPages:
    """An ASGI application that applies the limits and calls Django's."""

    def __init__(self, django: Any) -> None:
        self._django = django
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )
        self._waiting = 0
        self._buckets = {each: Bucket(n, n, time.monotonic()) for each, n in MAX_PER_MINUTE.items()}
        self.cache: dict[Key, tuple[dict[str, Any], bytes]] = {}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        key = _public_key(scope)
        if key in self.cache:
            start, body = self.cache[key]
            await send(start)
            content = b"" if scope["method"] == "HEAD" else body
            await send({"type": "http.response.body", "body": content})
            return
        reserved = 0
        try:
            self._check_rate(scope["method"], scope["path"])
            async with asyncio.timeout(conf.body_timeout_s):
                body = await _read_body(scope, receive)
            reserved = body_memory.change(0, len(body))
            if self._waiting >= MAX_WAITING:
                raise too_busy("pages")
            if key is not None and scope["method"] == "GET":
                send = _caching(send, key, self.cache)
            await self._call_django(scope, _with_body(body, receive), send)
        except TimeoutError:
            await _send_error(too_slow(), send)
        except HttpError as error:
            await _send_error(error, send)
        except ClientGone:
            pass
        finally:
            body_memory.change(reserved, 0)

    def _check_rate(self, method: str, path: str) -> None:
        """Raise HttpError 429 if a page gets more requests than ``MAX_PER_MINUTE`` allows."""
        bucket = self._buckets.get((method, path))
        if bucket is None:
            return
        bucket.refill(time.monotonic())
        if bucket.left < 1:
            seconds = max(1, round(bucket.seconds_until(1)))
            raise HttpError(
                429,
                "rate_limit_error",
                f"too many sign-ins at once; try again in {seconds} s",
                {"retry-after": str(seconds)},
            )
        bucket.left -= 1

    async def _call_django(self, scope: Any, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        slots = self._slots.setdefault(loop, asyncio.Semaphore(MAX_CONCURRENT))
        self._waiting += 1
        try:
            await slots.acquire()
        finally:
            self._waiting -= 1
        has_slot = True

        async def send_and_release(message: dict[str, Any]) -> None:
            nonlocal has_slot
            if has_slot:  # later messages wait for the client, which may read slowly
                has_slot = False
                slots.release()
            await send(message)

        try:
            await self._django(scope, receive, send_and_release)
        finally:
            if has_slot:
                slots.release()


class ClientGone(Exception):
    """The client disconnected before its whole body was received."""


def _public_key(scope: Any) -> Key | None:
    """Return the cache key of a public page; None for any other request."""
    if scope["path"] not in PUBLIC or scope["method"] not in {"GET", "HEAD"}:
        return None
    if scope.get("query_string"):
        return None
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    return (scope["path"], scope.get("scheme", "http"), hosts[0]) if len(hosts) == 1 else None


async def _read_body(scope: Any, receive: Receive) -> bytes:
    """Return the whole body. Raises HttpError 413 or ClientGone."""
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > limit:
            raise too_large(limit)
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body"):
            return b"".join(pieces)


def _with_body(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives the whole body first, then the server's messages."""
    was_given = False

    async def receive_body() -> dict[str, Any]:
        nonlocal was_given
        if was_given:
            return await receive()
        was_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_body


def _caching(send: Send, key: Key, cache: dict[Key, tuple[dict[str, Any], bytes]]) -> Send:
    """Return a ``send`` that also caches a complete response with status 200."""
    start: dict[str, Any] = {}
    pieces: list[bytes] = []

    async def send_and_cache(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            pieces.append(message.get("body", b""))
            is_complete = start.get("status") == 200 and not message.get("more_body")
            if is_complete and len(cache) < MAX_CACHED:
                cache[key] = ({**start}, b"".join(pieces))
        await send(message)

    return send_and_cache


async def _send_error(error: HttpError, send: Send) -> None:
    request_id = f"req_{new_ulid()}"
    body = error.body(request_id)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"request-id", request_id.encode()),
        *((name.encode(), text.encode()) for name, text in error.headers.items()),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
