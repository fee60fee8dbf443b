"""Django's test client over a socket: the HTTP server, the ASGI router, then Django.

Django's own test client calls the views directly, so it does not prove that the router forwards a
request to them. The views run in the test's thread and so inside its transaction.
"""

import asyncio
import http.client
import io
import string
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import uvicorn
from asgiref.sync import async_to_sync
from django.core.handlers.wsgi import WSGIRequest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.http import HttpResponse
from django.test import Client
from uvicorn.server import ServerState

from bridge_project.asgi import application
from proxy.server.http_protocol import HttpProtocol

TOKEN: Final = "a" * 32
"""The CSRF token that a browser would have received with a form."""

IN_QUERY: Final = string.punctuation
IN_PATH: Final = IN_QUERY.translate({ord(char): None for char in "%?#"})


class ServedClient(Client):
    """Django's test client over a socket.

    Responses have no ``context``; a streamed response is read completely.
    """

    def __init__(self, enforce_csrf_checks: bool = False, **rest: Any) -> None:
        super().__init__(enforce_csrf_checks, **rest)
        self.handler = SocketHandler(enforce_csrf_checks)

    def request(self, **environ: Any) -> Any:
        if not self.handler.enforce_csrf_checks:
            self.cookies["csrftoken"] = TOKEN
            environ.setdefault("HTTP_X_CSRFTOKEN", TOKEN)
        return super().request(**environ)


class SocketHandler:
    """The handler that Django's test client calls with each request."""

    def __init__(self, enforce_csrf_checks: bool) -> None:
        self.enforce_csrf_checks = enforce_csrf_checks

    def __call__(self, environ: dict[str, Any]) -> HttpResponse:
        for signal in (request_started, request_finished):  # as Django's own handler does
            signal.disconnect(close_old_connections)
        try:
            raw = async_to_sync(send_over_socket)(encode_request(environ))
        finally:
            for signal in (request_started, request_finished):
                signal.connect(close_old_connections)
        response = decode_response(raw, environ["REQUEST_METHOD"])
        response.wsgi_request = WSGIRequest(environ)  # type: ignore[attr-defined]  # Django's test client sets it too
        return response


def as_wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
    """Serve a request as a WSGI application, for test tools that need one."""
    answer = SocketHandler(enforce_csrf_checks=True)(environ)
    headers = [*answer.items(), *(("Set-Cookie", one.OutputString()) for one in answer.cookies.values())]  # fmt: skip
    start_response(f"{answer.status_code} {answer.reason_phrase}", headers)
    return iter([answer.content])


def encode_request(environ: Mapping[str, Any]) -> bytes:
    """Encode a WSGI environment as the bytes of an HTTP request."""
    path = urllib.parse.quote(environ["PATH_INFO"].encode("latin-1"), safe=IN_PATH)
    query = urllib.parse.quote(environ["QUERY_STRING"].encode("latin-1"), safe=IN_QUERY)
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
        for name, value in environ.items()
        if name.startswith("HTTP_") or name in {"CONTENT_TYPE", "CONTENT_LENGTH"}
    }
    headers = {"host": environ["SERVER_NAME"]} | headers | {"connection": "close"}
    body = environ["wsgi.input"].read(int(headers.get("content-length") or 0))
    target = path + (f"?{query}" if query else "")
    lines = [f"{environ['REQUEST_METHOD']} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items() if value]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def send_over_socket(request: bytes) -> bytes:
    """Send the request to a server in this event loop; return the complete response."""
    config = uvicorn.Config(application, http=HttpProtocol, lifespan="off", log_config=None)
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpProtocol(config, state, {}, loop), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        writer.write(request)
        answer = await reader.read()
        await asyncio.gather(*state.tasks)  # work of the application after its last byte
    finally:
        writer.close()
        server.close()
    return answer


class BytesSocket:
    """The part of the socket interface that ``http.client`` uses."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, *_: Any) -> io.BytesIO:
        return io.BytesIO(self._raw)


def decode_response(raw: bytes, method: str) -> HttpResponse:
    """Decode an HTTP response as the object that Django's test client returns."""
    with http.client.HTTPResponse(BytesSocket(raw), method=method) as answer:  # type: ignore[arg-type]
        answer.begin()
        response = HttpResponse(answer.read(), status=answer.status)
        del response["Content-Type"]
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                response.cookies.load(value)
            else:
                response[name] = value
    return response
