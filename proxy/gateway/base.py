"""The consumer that holds the traps of Channels' HTTP consumers, so that no other file must.

Channels awaits ``handle`` inside its dispatch loop: it would not see a client leave until the
answer is complete, it keeps the body twice, and it knows no limits. Here ``handle`` runs in the
server's own task while a second one listens for the client's departure and cancels the first.
"""

import asyncio
import io
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from channels.generic.http import AsyncHttpConsumer

from proxy.conf import conf
from proxy.logs import REQUEST
from proxy.record.records import CloseRecord

from . import reporting
from .body_memory import body_memory, in_turn
from .directory import directory
from .failures import log_refusal
from .head import Head
from .lifespan import RUNNING, start_parts
from .pressure import IN_A_ROW, pressure
from .refusals import Header, Refusal, refusal_of, too_busy, too_large, too_slow, wrong_method
from .watch import Stop, Watch

if TYPE_CHECKING:
    from .ledger import Exchange

JSON: Final = (b"content-type", b"application/json")
EVENT_STREAM: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
MIB: Final = 2**20
MOST_INFLATION: Final = 100
"""Times its size that a gzip body may inflate to, beyond a MiB. Conversations come to 5 to 20."""
INFLATED_SLICE: Final = 64 * 1024


class StreamingHttpConsumer(AsyncHttpConsumer):  # type: ignore[misc]  # Channels has no types
    """One request, one ``handle``; whatever leaves ``handle`` as an exception is answered here."""

    methods: ClassVar[tuple[str, ...]] = ("POST",)
    probe: ClassVar[bool] = False  # answered however busy the gateway is
    # How each request begins: told here, and not by eleven writes of each.
    begun = False  # the status line has left
    complete = False  # the last byte of the answer is on its way
    delivered = False  # and nobody left meanwhile
    answer: bytes | None = None  # a whole one, once it is given
    response_bytes = 0
    status = 0  # what the client was told; 0: nothing yet
    held = 0  # bytes of memory that its body has reserved
    entry: "Exchange | None" = None  # of a known caller's message
    closing: CloseRecord | None = None  # what the ledger says of it in the end
    stopped: Stop | None = None
    unheard_from: int | None = None
    """Bytes that were told when the client left, where its answer is heard out all the same."""
    _left = False
    _listening: asyncio.Task[None] | None = None  # for the client's departure

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        self.base_send = send
        self.receive = receive
        # Our own connections' cycle (``proxy.config.cycles``); other servers have none.
        bridge = scope["extensions"].get("bridge") if "extensions" in scope else None
        self._bridge = bridge
        self.head = Head(scope)
        scope["headers"] = ()  # they are there now: twice would be 1.5 KB more of an open stream
        self.extra_headers: list[Header] = []  # for every answer of this request
        self._task = asyncio.current_task() if bridge is None else bridge.task
        loop = asyncio.get_running_loop() if bridge is None else bridge.task.get_loop()
        self.watch = Watch(self.stop, loop)
        self.began = self.watch.now()
        REQUEST.set(self.head.request_id)
        RUNNING.add(self._task)
        try:
            if not directory.running:
                await start_parts()
            self._check()
            await self.handle()
        except asyncio.CancelledError:
            if self.stopped is None:
                raise  # the server is going down
        except Exception as exc:  # noqa: BLE001 - the last door: nothing may hang the client
            self.watch.end()  # nothing is waited for any more; a late alarm would cut the refusal
            log_refusal(self.head.request_id, refusal_of(exc), exc)
            await self.refuse(exc)
        finally:
            RUNNING.discard(self._task)
            self.watch.end()
            self.hold(0)
            if self._listening is not None:
                self._listening.cancel()
            if not self.probe:
                reporting.ended(self)
            # What knows each other in a circle would stay, with all that was said, until the
            # collector looks at everything, which is seldom (lifespan.py).
            self.entry = self._task = self._listening = None

    async def handle(self) -> None:
        raise NotImplementedError

    def _check(self) -> None:
        if self.scope["method"] not in self.methods:
            raise wrong_method(self.scope["method"], self.methods)
        if self.probe:
            return
        if len(RUNNING) > conf.max_streams:
            raise too_busy("max_streams")
        if pressure.late >= IN_A_ROW:
            raise too_busy("lag")

    def stop(self, why: Stop) -> None:
        """Cancel ``handle`` once; the first reason stays."""
        if self.stopped is None and self._task is not None:
            self.stopped = why
            self._task.cancel()

    def resume(self) -> None:
        """Take note that the cancellation was understood: ``handle`` goes on to end its answer."""
        self.stopped = None
        if self._task is not None:
            self._task.uncancel()

    def hold(self, size: int) -> None:
        """Reserve so many bytes of memory for the body, in place of what it had.

        Raises Refusal 529.
        """
        self.held = body_memory.change(self.held, size)

    async def read_body(self) -> bytes:
        """The client's body, inflated, within its cap and its deadline.

        Raises Refusal 400, 408, 413, 415 or 529.
        """
        limit, bridge = conf.max_body_bytes, self._bridge
        body: bytes | None = bridge.whole_body() if bridge is not None else None
        if body is None:
            body = await self._awaited(limit)
        elif len(body) > limit:
            raise too_large(limit)
        self.hold(len(body))
        # Hear of it when the client leaves: from our own connection, or else by a task.
        if bridge is not None:
            bridge.when_left(self._has_left)
        else:
            self._listening = asyncio.create_task(self._wait_for_leave())
        if b"content-encoding" in self.head.headers:
            encoding = self.head.text(b"content-encoding")
            if encoding == "gzip":
                self.hold(len(body) + inflation_limit(body, limit))
            body = await in_turn(inflated, body, encoding, limit)
            self.hold(len(body))
        return body

    async def _awaited(self, limit: int) -> bytes:
        length = self.head.content_length or 0
        if length > limit:
            raise too_large(limit)
        late = self.watch.later(conf.body_timeout_s + length / MIB, Stop.BODY)
        try:
            return await self._received(limit)
        except asyncio.CancelledError:
            if self.stopped is not Stop.BODY:
                raise
            self.resume()
            raise too_slow() from None
        finally:
            late.cancel()

    async def _received(self, limit: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._next_message()
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise too_large(limit)
            self.hold(size)
            if not message.get("more_body"):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _next_message(self) -> dict[str, Any]:
        message: dict[str, Any] = await self.receive()
        if message["type"] == "http.disconnect":
            self.stopped = Stop.CLIENT_GONE
            raise asyncio.CancelledError
        return message

    async def _wait_for_leave(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self._has_left()

    def _has_left(self) -> None:
        self._left = True
        if self.complete:
            return
        if self.entry is not None and self.entry.goes_on():
            self.unheard_from = self.response_bytes
        else:
            self.stop(Stop.CLIENT_GONE)

    async def begin(
        self, status: int, headers: tuple[Header, ...] = (), length: int | None = None
    ) -> None:
        """Send status and headers; every answer names its request.

        ``length`` is the body's, where all of it is there.
        """
        self.begun = True
        self.status = status
        name, bridge = self.head.request_id.encode(), self._bridge
        if bridge is not None and status == 200 and not self.extra_headers:
            bridge.begin_well(headers, name, length)
            return
        told = [*headers]
        if length is not None:
            told.append((b"content-length", b"%d" % length))
        told += [(b"request-id", name), (b"x-bridge-request-id", name), *self.extra_headers]
        if bridge is not None:
            bridge.begin(status, told)
        else:
            await self.base_send({"type": "http.response.start", "status": status, "headers": told})

    def may_ping(self, ping: bytes) -> None:
        """Tell the connection, where it cares, what may stand between two writes of this answer."""
        if self._bridge is not None:
            self._bridge.ping = ping

    @property
    def cycle(self) -> Any:
        """Our own connection's, which takes pieces of an answer at once; None under others."""
        return self._bridge

    async def write(self, body: bytes, *, more: bool) -> None:
        self.response_bytes += len(body)
        if not more:
            self.complete = True
        if self._bridge is None or not self._bridge.put(body, more=more):
            await self.base_send({"type": "http.response.body", "body": body, "more_body": more})
        self.delivered = self.complete and not self._left

    async def respond(
        self, status: int, body: bytes, headers: tuple[Header, ...] = (JSON,)
    ) -> None:
        """A whole answer."""
        self.answer = body if status == 200 else None
        await self.begin(status, headers, len(body))
        await self.write(b"" if self.scope["method"] == "HEAD" else body, more=False)

    async def refuse(self, exc: Exception) -> None:
        refusal = refusal_of(exc)
        if self.complete:
            return
        if self.begun:  # too late for a status; a client must never mistake this for an end
            await self.write(b"event: error\ndata: " + refusal.body(self.head.request_id) + b"\n\n",
                             more=False)  # fmt: skip
            return
        await self.respond(
            refusal.status, refusal.body(self.head.request_id), (JSON, *_encoded(refusal.headers))
        )


def _encoded(headers: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items())


def inflation_limit(body: bytes, limit: int) -> int:
    """Return how many bytes a gzip ``body`` may inflate to."""
    return min(limit, max(MIB, MOST_INFLATION * len(body)))


def inflated(body: bytes, encoding: str, limit: int) -> bytes:
    """Undo ``content-encoding: gzip``, but never beyond ``limit`` bytes or what is plausible.

    It is one gzip member with nothing behind it. Raises Refusal 400, 413 or 415.
    """
    if encoding in {"", "identity"}:
        return body
    if encoding != "gzip":
        raise Refusal(
            415,
            "invalid_request_error",
            f"content-encoding {encoding[:40]!r} is not supported; send gzip or none",
            error_code="unsupported_request_body_encoding",
        )
    most = inflation_limit(body, limit)
    unpacker, plain, read = zlib.decompressobj(wbits=31), io.BytesIO(), 0
    with memoryview(body) as packed:  # by slices: what stands behind the end is copied by zlib
        try:
            while read < len(packed) and not unpacker.eof and plain.tell() <= most:
                piece = packed[read : read + INFLATED_SLICE]
                plain.write(unpacker.decompress(piece, most + 1 - plain.tell()))
                read += len(piece) - len(unpacker.unused_data)
        except zlib.error:
            raise _bad_gzip("the body is not valid gzip") from None
    if plain.tell() > most:
        raise too_large(limit) if most == limit else too_inflated()
    if not unpacker.eof:
        raise _bad_gzip("the body is not valid gzip: it ends too early")
    if read < len(body):
        raise _bad_gzip("the body is not valid gzip: there is more behind its end")
    return plain.getvalue()


def too_inflated() -> Refusal:
    return Refusal(
        413,
        "request_too_large",
        f"the gzip body inflates to more than {MOST_INFLATION} times its size; send it unpacked",
    )


def _bad_gzip(message: str) -> Refusal:
    return Refusal(
        400, "invalid_request_error", message, error_code="invalid_request_body_encoding"
    )
