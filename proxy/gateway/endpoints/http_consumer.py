"""The base class of all HTTP consumers: body limits, deadlines, disconnects and error responses.

Channels awaits ``handle`` inside its dispatch loop: it would not notice that a client disconnects
before the response is complete, it stores the body twice, and it has no limits. Here ``handle``
runs in the server's own task. A second task waits for the disconnect and cancels the first.
"""

import asyncio
from typing import Any, ClassVar, Final

from channels.generic.http import AsyncHttpConsumer

from proxy.conf import conf
from proxy.gateway.admission.load_shedding import IN_A_ROW, load_shedder
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
from proxy.gateway.http.request_body import MIB, gunzip_limited, inflation_limit, run_in_body_thread
from proxy.gateway.http.request_headers import RequestHeaders
from proxy.gateway.request.client_response import ORIGIN, ClientResponse
from proxy.gateway.request.request import Request
from proxy.gateway.snapshot.config_snapshot import directory
from proxy.log_format import REQUEST

from . import request_finished
from .lifespan import RUNNING, start_services

PREFLIGHT: Final = b"access-control-request-method"
PREFLIGHT_AGE_S: Final = 7_200  # no browser keeps the answer longer


class StreamingHttpConsumer(ClientResponse, AsyncHttpConsumer):  # type: ignore[misc]  # Channels has no types
    """One request. An exception that ``handle`` raises becomes an error response here."""

    methods: ClassVar[tuple[str, ...]] = ("POST",)
    probe: ClassVar[bool] = False  # if true, the endpoint responds under any load
    request: Request | None = None  # set for requests to /v1/messages with a known key
    _disconnect_task: asyncio.Task[None] | None = None  # waits for the client's disconnect

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        self.base_send = send
        self.receive = receive
        self.head = RequestHeaders(scope)
        scope["headers"] = ()  # ``self.head`` has them; a second copy costs 1.5 KB a stream
        self.extra_headers: list[Header] = []  # these are sent with any response to this request
        self.task = asyncio.current_task()
        self.deadlines = Deadlines(self.stop, asyncio.get_running_loop())
        self.started = self.deadlines.now()
        REQUEST.set(self.head.request_id)
        RUNNING.add(self.task)
        try:
            if not directory.running:
                await start_services()
            if self.cross_origin and scope["method"] == "OPTIONS" and self._is_preflight():
                await self._allow_cross_origin()
                return
            self._check_method_and_load()
            await self.handle()
        except asyncio.CancelledError:
            if self.cancel_reason is None:
                raise  # the server is shutting down, so the cancellation continues
        except Exception as exc:  # noqa: BLE001 - every error becomes a response
            self.deadlines.end()  # a deadline must not cancel the error response
            log_refusal(self.head.request_id, to_http_error(exc), exc)
            await self.send_error(exc)
        finally:
            RUNNING.discard(self.task)
            self.deadlines.end()
            self.reserve_memory(0)
            if self._disconnect_task is not None:
                self._disconnect_task.cancel()
            if not self.probe:
                request_finished.request_finished(self)
            # Break the reference cycle: the garbage collector runs rarely (lifespan.py), so a
            # cycle would keep the whole response in memory.
            self.request = self.task = self._disconnect_task = None

    async def handle(self) -> None:
        raise NotImplementedError

    def _check_method_and_load(self) -> None:
        if self.scope["method"] not in self.methods:
            raise wrong_method(self.scope["method"], self.methods)
        if not self.probe and len(RUNNING) > conf.max_streams:
            raise too_busy("max_streams")
        if not self.probe and load_shedder.late >= IN_A_ROW:
            raise too_busy("lag")

    # Cross-origin requests (CORS) of pages in a browser, to the paths that need a gateway key.
    #
    # A page of any origin may send requests, as Anthropic's API allows for clients with
    # ``anthropic-dangerous-direct-browser-access``. That gives a page nothing it did not have:
    # these paths accept only a key in a header, never a cookie, so a browser adds no authority of
    # its user. Without ``access-control-allow-credentials``, a browser sends no cookies either.
    # Source: Fetch standard, "CORS protocol".

    def _is_preflight(self) -> bool:
        """Return whether a browser asks if a page may send the request that follows."""
        return ORIGIN in self.head.headers and PREFLIGHT in self.head.headers

    async def _allow_cross_origin(self) -> None:
        headers = (
            (b"access-control-allow-methods", ", ".join(self.methods).encode()),
            (b"access-control-allow-headers", b"*, authorization"),  # "*" excludes this one
            (b"access-control-max-age", b"%d" % PREFLIGHT_AGE_S),
        )
        await self.send_headers(204, headers)
        await self.send_body(b"", more=False)

    async def read_body(self) -> bytes:
        """Return the client's body, decompressed.

        Raises HttpError (400, 408, 413, 415 or 529) if the body breaks a limit or the deadline.
        """
        limit = conf.max_body_bytes
        length = self.head.content_length or 0
        if length > limit:
            raise too_large(limit)
        late = self.deadlines.later(conf.body_timeout_s + length / MIB, CancelReason.BODY)
        try:
            body = await self._read_body_chunks(limit)
        except asyncio.CancelledError:
            if self.cancel_reason is not CancelReason.BODY:
                raise
            self.clear_cancellation()
            raise too_slow() from None
        finally:
            late.cancel()
        self._disconnect_task = asyncio.create_task(self._wait_for_disconnect())
        if b"content-encoding" in self.head.headers:
            encoding = self.head.text(b"content-encoding")
            if encoding == "gzip":
                self.reserve_memory(len(body) + inflation_limit(body, limit))
            body = await run_in_body_thread(gunzip_limited, body, encoding, limit)
            self.reserve_memory(len(body))
        return body

    async def _read_body_chunks(self, limit: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                self.cancel_reason = CancelReason.CLIENT_GONE
                raise asyncio.CancelledError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise too_large(limit)
            self.reserve_memory(size)
            if not message.get("more_body"):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _wait_for_disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.client_left = True
        if self.complete:
            return
        if self.request is not None and self.request.should_drain_upstream():
            self.bytes_at_disconnect = self.response_bytes
        else:
            self.stop(CancelReason.CLIENT_GONE)
