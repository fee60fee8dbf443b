"""ASGI routes: the paths that the gateway serves itself, without Django and its middleware."""

from collections.abc import Awaitable, Mapping
from typing import Any, Final

from proxy.gateway.endpoints.count_tokens import CountTokensConsumer
from proxy.gateway.endpoints.health import Health, Metrics, Readiness, StartPage, UnknownPath
from proxy.gateway.endpoints.http_consumer import StreamingHttpConsumer
from proxy.gateway.endpoints.messages import MessagesConsumer
from proxy.gateway.endpoints.model_list import ModelsConsumer
from proxy.server.lazy_asgi import LazyApplication

from .ids import new_ulid

EXACT_PATHS: Final[Mapping[str, type[StreamingHttpConsumer]]] = {
    "/": StartPage,
    "/api/hello": Health,  # Claude Code requests this path at its start
    "/healthz": Health,
    "/readyz": Readiness,
    "/metrics": Metrics,
    "/v1/messages": MessagesConsumer,
    "/v1/messages/count_tokens": CountTokensConsumer,
    "/v1/models": ModelsConsumer,
}
PREFIXES: Final[Mapping[str, type[StreamingHttpConsumer] | None]] = {
    "/v1/models/": ModelsConsumer,
    # None: Django serves the path.
    "/admin/": None,
    "/api/v1/": None,
    "/sign-in/": None,
    "/static/": None,
    "/v1/organizations/": None,
}
"""Consumers by path prefix. Other paths get a 404 in JSON, as API clients cannot parse HTML."""
WITHOUT_SLASH: Final = ("/admin", "/sign-in")
"""Paths that users type; Django redirects them to the path with a slash."""


class Router:
    """Route requests by exact path, then by prefix. For any other path, return a 404 in JSON."""

    def __init__(self, django: Any) -> None:
        self._django = RequestIdMiddleware(django)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        path = scope["path"]
        consumer = EXACT_PATHS[path] if path in EXACT_PATHS else _by_prefix(path)
        app = self._django if consumer is None else consumer()
        awaitable: Awaitable[None] = app(scope, receive, send)
        return awaitable


def _by_prefix(path: str) -> type[StreamingHttpConsumer] | None:
    """Return the consumer of a prefix; None if Django serves the path."""
    if path in WITHOUT_SLASH:
        return None
    return next((app for prefix, app in PREFIXES.items() if path.startswith(prefix)), UnknownPath)


class RequestIdMiddleware:
    """Add ``request-id`` and ``x-bridge-request-id`` to the responses of Django."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_id(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.lower(), value) for name, value in message["headers"]]
                request_id = dict(headers).get(b"request-id") or f"req_{new_ulid()}".encode()
                ids = [(b"request-id", request_id), (b"x-bridge-request-id", request_id)]
                others = [pair for pair in headers if pair[0] != b"request-id"]
                message = {**message, "headers": [*others, *ids]}
            await send(message)

        await self._application(scope, receive, send_with_id)


def _feed() -> Any:
    from proxy.admin.live.consumers import LiveFeedConsumer  # noqa: PLC0415 - this imports the whole admin

    return LiveFeedConsumer.as_asgi()


live_feed: Final = LazyApplication(_feed)


async def websockets(scope: Any, receive: Any, send: Any) -> None:
    """Serve the WebSocket of the live view.

    Reject any other WebSocket during the handshake (403).
    """
    if scope["path"] == "/ws/live/":
        await live_feed(scope, receive, send)
    elif (await receive())["type"] == "websocket.connect":
        await send({"type": "websocket.close"})
