"""The interface of the response to the client, for the code that records and relays it."""

from typing import Protocol

from proxy.gateway.http.deadlines import CancelReason, Deadlines
from proxy.gateway.http.errors import Header


class ClientResponse(Protocol):
    """The interface of the response to the client. The HTTP consumer implements it."""

    started: float
    """When the request began, on the event loop's clock."""
    deadlines: Deadlines
    extra_headers: list[Header]
    """Headers that are sent with any response to this request, including errors."""
    headers_sent: bool
    complete: bool
    """Whether the last byte of the response is written."""
    delivered: bool
    """Whether the response was written completely while the client was connected."""
    response_bytes: int
    bytes_at_disconnect: int | None
    """The number of response bytes sent until the client disconnected. It is set only if the
    gateway continues to read the upstream's response."""
    cancel_reason: CancelReason | None

    async def send_headers(
        self, status: int, headers: tuple[Header, ...] = (), length: int | None = None
    ) -> None: ...
    async def send_body(self, body: bytes, *, more: bool) -> None: ...
    async def send_response(
        self, status: int, body: bytes, headers: tuple[Header, ...] = ...
    ) -> None:
        """Send a complete response."""
        ...

    async def send_error(self, exc: Exception) -> None:
        """Send an error response. If the stream has begun, end it with an ``error`` event."""
        ...

    def stop(self, reason: CancelReason) -> None:
        """Cancel the request. Only the first call has an effect."""
        ...

    def clear_cancellation(self) -> None:
        """Undo the cancellation of the request's task, so that the task can end the response."""
        ...

    def reserve_memory(self, size: int) -> None:
        """Reserve memory for the request body.

        Raises HttpError (529) if the process's limit is reached.
        """
        ...
