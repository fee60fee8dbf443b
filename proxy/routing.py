"""ASGI routes: what the gateway answers itself, ahead of Django and its middleware."""

from collections.abc import Awaitable, Mapping
from typing import Any, Final

from .gateway.base import StreamingHttpConsumer
from .gateway.consumer import MessagesConsumer
from .gateway.count import CountTokensConsumer
from .gateway.health import Health, Metrics, Readiness, StartPage, UnknownPath
from .gateway.models import ModelsConsumer
from .ondemand import OnDemand
from .ulids import new_ulid

EXACT: Final[Mapping[str, type[StreamingHttpConsumer]]] = {
    "/": StartPage,
    "/api/hello": Health,  # what Claude Code asks when it starts
    "/healthz": Health,
    "/readyz": Readiness,
    "/metrics": Metrics,
    "/v1/messages": MessagesConsumer,
    "/v1/messages/count_tokens": CountTokensConsumer,
    "/v1/models": ModelsConsumer,
}
BELOW: Final[Mapping[str, type[StreamingHttpConsumer] | None]] = {
    "/v1/models/": ModelsConsumer,
    # None: Django answers.
    "/admin/": None,
    "/api/v1/": None,
    "/sign-in/": None,
    "/static/": None,
    "/v1/organizations/": None,
}
"""By prefix. Any other path is a 404 in JSON: a client behind a wrong base URL parses no HTML."""
WITHOUT_SLASH: Final = ("/admin", "/sign-in")
"""Addresses that people type; Django redirects to the one with the slash."""


class Router:
    """Look a path up in the tables, exact names first; every other path is a 404 in JSON."""

    def __init__(self, django: Any) -> None:
        self._django = Identified(django)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        path = scope["path"]
        consumer = EXACT[path] if path in EXACT else _below(path)
        app = self._django if consumer is None else consumer()
        answering: Awaitable[None] = app(scope, receive, send)
        return answering


def _below(path: str) -> type[StreamingHttpConsumer] | None:
    """Return the consumer of the longest known prefix; None: Django's."""
    if path in WITHOUT_SLASH:
        return None
    return next((app for prefix, app in BELOW.items() if path.startswith(prefix)), UnknownPath)


class Identified:
    """What Django answers carries an id under both names, as every answer does (design.md 3.3)."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def identified(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.lower(), value) for name, value in message["headers"]]
                ident = dict(headers).get(b"request-id") or f"req_{new_ulid()}".encode()
                ids = [(b"request-id", ident), (b"x-bridge-request-id", ident)]
                others = [pair for pair in headers if pair[0] != b"request-id"]
                message = {**message, "headers": [*others, *ids]}
            await send(message)

        await self._application(scope, receive, identified)


def _feed() -> Any:
    from .admin.feed import LiveFeed  # noqa: PLC0415 - brings the whole admin

    return LiveFeed.as_asgi()


live_feed: Final = OnDemand(_feed)


async def websockets(scope: Any, receive: Any, send: Any) -> None:
    """The live view's feed; any other WebSocket is refused before it opens (403)."""
    if scope["path"] == "/ws/live/":
        await live_feed(scope, receive, send)
    elif (await receive())["type"] == "websocket.connect":
        await send({"type": "websocket.close"})
