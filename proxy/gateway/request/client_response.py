"""The response to the client: its head and body, its deadlines, and its cancellation."""

import asyncio
from typing import Any, ClassVar, Final

from proxy.gateway.http.deadlines import CancelReason, Deadlines
from proxy.gateway.http.errors import Header, to_http_error
from proxy.gateway.http.request_body import body_memory
from proxy.gateway.http.request_headers import RequestHeaders

JSON: Final = (b"content-type", b"application/json")
ORIGIN: Final = b"origin"
ALLOW_ORIGIN: Final = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"*"),
)
"""The headers of every response to a page, errors included: without them it could not read it."""


class ClientResponse:
    """The response to one request. The HTTP consumer extends it by the request's body."""

    cross_origin: ClassVar[bool] = False
    """Whether pages of other origins may send requests; only for paths that need a key."""

    head: RequestHeaders
    """The headers of the request."""
    started: float
    """When the request began, on the event loop's clock."""
    deadlines: Deadlines
    extra_headers: list[Header]
    """Headers that are sent with any response to this request, including errors."""
    base_send: Any
    task: asyncio.Task[Any] | None
    """The task that handles the request."""
    # Initial values as class attributes: they save eleven assignments for each request.
    headers_sent = False  # the status line is sent
    complete = False  # whether the last byte of the response is written
    delivered = False  # whether the response is complete and the client was still connected
    response_bytes = 0
    status = 0  # the response status that was sent; 0: none yet
    reserved_bytes = 0  # memory reserved for the request body
    cancel_reason: CancelReason | None = None
    refusal = ""  # why the gateway refused the request; empty if it did not
    client_left = False
    bytes_at_disconnect: int | None = None
    """Response bytes sent when the client disconnected. It is set only if the gateway continues to
    read the upstream's response."""

    def stop(self, reason: CancelReason) -> None:
        """Cancel the request's task once; the first reason counts."""
        if self.cancel_reason is None and self.task is not None:
            self.cancel_reason = reason
            self.task.cancel()

    def clear_cancellation(self) -> None:
        """Undo the cancellation of the request's task, so that it can end the response."""
        self.cancel_reason = None
        if self.task is not None:
            self.task.uncancel()

    def reserve_memory(self, size: int) -> None:
        """Reserve ``size`` bytes of memory for the body in place of the earlier reservation.

        Raises HttpError (529) if the limit for all bodies is reached.
        """
        self.reserved_bytes = body_memory.change(self.reserved_bytes, size)

    async def send_headers(
        self, status: int, headers: tuple[Header, ...] = (), length: int | None = None
    ) -> None:
        """Send the status line and the headers, with the request's id.

        ``length``: the size of the body in bytes, if it is known.
        """
        self.headers_sent = True
        self.status = status
        request_id = self.head.request_id.encode()
        all_headers = [*headers]
        if length is not None:
            all_headers.append((b"content-length", b"%d" % length))
        all_headers += [(b"request-id", request_id), (b"x-bridge-request-id", request_id)]
        all_headers += self.extra_headers
        if self.cross_origin and ORIGIN in self.head.headers:
            all_headers += ALLOW_ORIGIN
        await self.base_send(
            {"type": "http.response.start", "status": status, "headers": all_headers}
        )

    async def send_body(self, body: bytes, *, more: bool) -> None:
        self.response_bytes += len(body)
        self.complete = not more
        await self.base_send({"type": "http.response.body", "body": body, "more_body": more})
        self.delivered = not more and not self.client_left

    async def send_response(
        self, status: int, body: bytes, headers: tuple[Header, ...] = (JSON,)
    ) -> None:
        """Send a complete response."""
        await self.send_headers(status, headers, len(body))
        await self.send_body(b"" if self.head.scope["method"] == "HEAD" else body, more=False)

    async def send_error(self, exc: Exception) -> None:
        """Send an error response. If the stream has begun, end it with an ``error`` event."""
        refusal = to_http_error(exc)
        if refusal.outcome == "refused":
            self.refusal = refusal.detail or refusal.error_type
        if self.complete:
            return
        body = refusal.body(self.head.request_id)
        if self.headers_sent:  # an error status can no longer be sent
            await self.send_body(b"event: error\ndata: " + body + b"\n\n", more=False)
            return
        headers = ((n.encode("latin-1"), v.encode("latin-1")) for n, v in refusal.headers.items())
        await self.send_response(refusal.status, body, (JSON, *headers))
