"""The base class of all HTTP consumers: body limits, deadlines, disconnects and error responses.

Channels awaits ``handle`` inside its dispatch loop: it would not notice that a client disconnects
before the response is complete, it stores the body twice, and it has no limits. Here ``handle``
runs in the server's own task. A second task waits for the disconnect and cancels the first.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from channels.generic.http import AsyncHttpConsumer

from proxy.conf import conf
from proxy.gateway.admission.load_shedding import IN_A_ROW, load_shedder
from proxy.gateway.exchange.request_context import RequestContext
from proxy.gateway.http.body_memory import body_memory, run_in_body_thread
from proxy.gateway.http.cross_origin import (
    ALLOW_ORIGIN,
    ORIGIN,
    is_preflight,
    preflight_headers,
)
from proxy.gateway.http.deadlines import CancelReason, Deadlines
from proxy.gateway.http.error_log import log_refusal
from proxy.gateway.http.errors import (
    Header,
    to_http_error,
    too_busy,
    too_large,
    too_slow,
    wrong_method,
)
from proxy.gateway.http.gzip_body import MIB, gunzip_limited, inflation_limit
from proxy.gateway.http.request_headers import RequestHeaders
from proxy.gateway.snapshot.config_snapshot import directory
from proxy.log_format import REQUEST

from . import request_finished
from .lifespan import RUNNING, start_services

JSON: Final = (b"content-type", b"application/json")


class StreamingHttpConsumer(AsyncHttpConsumer):  # type: ignore[misc]  # Channels has no types
    """One request. An exception that ``handle`` raises becomes an error response here."""

    methods: ClassVar[tuple[str, ...]] = ("POST",)
    probe: ClassVar[bool] = False  # if true, the endpoint responds under any load
    cross_origin: ClassVar[bool] = False
    """Whether pages of other origins may send requests; only for paths that need a key."""
    # Initial values as class attributes: they save eleven assignments for each request.
    headers_sent = False  # the status line is sent
    complete = False  # whether the last byte of the response is written
    delivered = False  # whether the response is complete and the client was still connected
    response_bytes = 0
    status = 0  # the response status that was sent; 0: none yet
    reserved_bytes = 0  # memory reserved for the request body
    context: RequestContext | None = None  # set for requests to /v1/messages with a known key
    cancel_reason: CancelReason | None = None
    refusal = ""  # why the gateway refused the request; empty if it did not
    bytes_at_disconnect: int | None = None
    """Response bytes sent when the client disconnected, if the upstream is read to its end."""
    _client_left = False
    _disconnect_task: asyncio.Task[None] | None = None  # waits for the client's disconnect

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        self.base_send = send
        self.receive = receive
        self.headers = RequestHeaders(scope)
        scope["headers"] = ()  # ``self.headers`` has them; a second copy costs 1.5 KB a stream
        self.extra_headers: list[Header] = []  # these are sent with any response to this request
        self._task = asyncio.current_task()
        self.deadlines = Deadlines(self.stop, asyncio.get_running_loop())
        self.started = self.deadlines.now()
        REQUEST.set(self.headers.request_id)
        RUNNING.add(self._task)
        try:
            if not directory.running:
                await start_services()
            if self.cross_origin and is_preflight(scope["method"], self.headers.headers):
                await self.send_headers(204, preflight_headers(self.methods))
                await self.send_body(b"", more=False)
                return
            self._check_method_and_load()
            await self.handle()
        except asyncio.CancelledError:
            if self.cancel_reason is None:
                raise  # the server is shutting down, so the cancellation continues
        except Exception as exc:  # noqa: BLE001 - every error becomes a response
            self.deadlines.end()  # a deadline must not cancel the error response
            log_refusal(self.headers.request_id, to_http_error(exc), exc)
            await self.send_error(exc)
        finally:
            RUNNING.discard(self._task)
            self.deadlines.end()
            self.reserve_memory(0)
            if self._disconnect_task is not None:
                self._disconnect_task.cancel()
            if not self.probe:
                request_finished.request_finished(self)
            # Break the reference cycle: the garbage collector runs rarely (lifespan.py), so a
            # cycle would keep the whole response in memory.
            self.context = self._task = self._disconnect_task = None

    async def handle(self) -> None:
        raise NotImplementedError

    def _check_method_and_load(self) -> None:
        if self.scope["method"] not in self.methods:
            raise wrong_method(self.scope["method"], self.methods)
        if self.probe:
            return
        if len(RUNNING) > conf.max_streams:
            raise too_busy("max_streams")
        if load_shedder.late >= IN_A_ROW:
            raise too_busy("lag")

    def stop(self, reason: CancelReason) -> None:
        """Cancel ``handle`` once; the first reason counts."""
        if self.cancel_reason is None and self._task is not None:
            self.cancel_reason = reason
            self._task.cancel()

    def clear_cancellation(self) -> None:
        """Undo the cancellation, so that ``handle`` can end its response."""
        self.cancel_reason = None
        if self._task is not None:
            self._task.uncancel()

    def reserve_memory(self, size: int) -> None:
        """Reserve ``size`` bytes of memory for the body in place of the earlier reservation.

        Raises HttpError (529) if the limit for all bodies is reached.
        """
        self.reserved_bytes = body_memory.change(self.reserved_bytes, size)

    async def read_body(self) -> bytes:
        """Return the client's body, decompressed.

        Raises HttpError (400, 408, 413, 415 or 529) if the body breaks a limit or the deadline.
        """
        limit = conf.max_body_bytes
        body = await self._read_body_with_timeout(limit)
        self._disconnect_task = asyncio.create_task(self._wait_for_disconnect())
        if b"content-encoding" in self.headers.headers:
            encoding = self.headers.text(b"content-encoding")
            if encoding == "gzip":
                self.reserve_memory(len(body) + inflation_limit(body, limit))
            body = await run_in_body_thread(gunzip_limited, body, encoding, limit)
            self.reserve_memory(len(body))
        return body

    async def _read_body_with_timeout(self, limit: int) -> bytes:
        length = self.headers.content_length or 0
        if length > limit:
            raise too_large(limit)
        late = self.deadlines.later(conf.body_timeout_s + length / MIB, CancelReason.BODY)
        try:
            return await self._read_body_chunks(limit)
        except asyncio.CancelledError:
            if self.cancel_reason is not CancelReason.BODY:
                raise
            self.clear_cancellation()
            raise too_slow() from None
        finally:
            late.cancel()

    async def _read_body_chunks(self, limit: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._next_message()
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise too_large(limit)
            self.reserve_memory(size)
            if not message.get("more_body"):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _next_message(self) -> dict[str, Any]:
        message: dict[str, Any] = await self.receive()
        if message["type"] == "http.disconnect":
            self.cancel_reason = CancelReason.CLIENT_GONE
            raise asyncio.CancelledError
        return message

    async def _wait_for_disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self._on_client_disconnect()

    def _on_client_disconnect(self) -> None:
        self._client_left = True
        if self.complete:
            return
        if self.context is not None and self.context.should_drain_upstream():
            self.bytes_at_disconnect = self.response_bytes
        else:
            self.stop(CancelReason.CLIENT_GONE)

    async def send_headers(
        self, status: int, headers: tuple[Header, ...] = (), length: int | None = None
    ) -> None:
        """Send the status line and the headers, with the request's id.

        ``length``: the size of the body in bytes, if it is known.
        """
        self.headers_sent = True
        self.status = status
        request_id = self.headers.request_id.encode()
        all_headers = [*headers]
        if length is not None:
            all_headers.append((b"content-length", b"%d" % length))
        all_headers += [(b"request-id", request_id), (b"x-bridge-request-id", request_id)]
        all_headers += self.extra_headers
        if self.cross_origin and ORIGIN in self.headers.headers:
            all_headers += ALLOW_ORIGIN
        await self.base_send(
            {"type": "http.response.start", "status": status, "headers": all_headers}
        )

    async def send_body(self, body: bytes, *, more: bool) -> None:
        self.response_bytes += len(body)
        self.complete = not more
        await self.base_send({"type": "http.response.body", "body": body, "more_body": more})
        self.delivered = not more and not self._client_left

    async def send_response(
        self, status: int, body: bytes, headers: tuple[Header, ...] = (JSON,)
    ) -> None:
        """Send a complete response."""
        await self.send_headers(status, headers, len(body))
        await self.send_body(b"" if self.scope["method"] == "HEAD" else body, more=False)

    async def send_error(self, exc: Exception) -> None:
        refusal = to_http_error(exc)
        if refusal.outcome == "refused":
            self.refusal = refusal.detail or refusal.error_type
        if self.complete:
            return
        # An error status can no longer be sent, so the stream must end in an error.
        if self.headers_sent:
            error = b"event: error\ndata: " + refusal.body(self.headers.request_id) + b"\n\n"
            await self.send_body(error, more=False)
            return
        await self.send_response(
            refusal.status,
            refusal.body(self.headers.request_id),
            (JSON, *_encode_headers(refusal.headers)),
        )


def _encode_headers(headers: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items())
