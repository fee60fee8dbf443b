"""The sandbox as an ASGI application: Responses, Chat Completions, token count, model list."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from . import chat, responses
from .script import ERRORS, LABEL, SandboxRequest, SandboxResponse, build_response, count_tokens

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

MODELS: Final = ("text", "thinking", "tools", "slow", "error-429", "error-500", "cut")
NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class SandboxDialect:
    """One OpenAI API: how to parse a request, encode a response and end a stream."""

    parse_request: Callable[[Mapping[str, Any], int], SandboxRequest]
    response_class: Callable[[SandboxRequest, SandboxResponse, str], Any]
    named_events: bool
    """Whether SSE events have an ``event:`` line, as in Responses.

    If not, the stream ends with ``[DONE]``, as in Chat Completions.
    """


DIALECTS: Final = {
    "/v1/responses": SandboxDialect(
        responses.parse_request, responses.ResponsesResponse, named_events=True
    ),
    "/v1/chat/completions": SandboxDialect(
        chat.parse_request, chat.ChatResponse, named_events=False
    ),
}


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    path = scope["path"].rstrip("/")
    raw_body = await _body(receive)
    if path == "/v1/models":
        models = [{"id": f"{LABEL}-{name}", "object": "model"} for name in MODELS]
        await _send_json(send, 200, {"object": "list", "data": models})
        return
    try:
        body = json.loads(raw_body)
        if path == "/v1/responses/input_tokens":
            count = {"object": "response.input_tokens", "input_tokens": count_tokens(len(raw_body))}
            await _send_json(send, 200, count)
        elif path in DIALECTS:
            await _respond(DIALECTS[path], body, len(raw_body), send)
        else:
            await _send_json(send, 404, _error(404, f"the sandbox has no {path!r}"))
    except (LookupError, TypeError, ValueError, AttributeError):
        await _send_json(send, 400, _error(400, "the sandbox cannot parse this request"))


async def _respond(dialect: SandboxDialect, body: dict[str, Any], size: int, send: Send) -> None:
    request = dialect.parse_request(body, size)
    response = build_response(request)
    if response.status != 200:
        await _send_json(send, response.status, _error(response.status, ERRORS[response.status][1]))
        return
    encoded = dialect.response_class(request, response, f"{LABEL}{next(NUMBERS):08d}")
    if not body.get("stream"):
        await asyncio.sleep(response.pause_s)
        await _send_json(send, 200, encoded.whole)
        return
    await _start(send, 200, b"text/event-stream; charset=utf-8")
    events = list(encoded.events())
    for event in events[: len(events) // 2] if response.cut else events:
        if "delta" in event.get("type", "delta"):
            await asyncio.sleep(response.pause_s)
        name = f"event: {event['type']}\n" if dialect.named_events else ""
        line = f"{name}data: {json.dumps(event)}\n\n"
        await send({"type": "http.response.body", "body": line.encode(), "more_body": True})
    end = b"" if dialect.named_events or response.cut else b"data: [DONE]\n\n"
    await send({"type": "http.response.body", "body": end})


def _error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": ERRORS[status][0], "code": None, "param": None}}


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    return b"".join(parts)


async def _start(send: Send, status: int, content_type: bytes) -> None:
    headers = [
        (b"content-type", content_type),
        (b"x-request-id", f"req_{LABEL}{next(NUMBERS):08d}".encode()),
        (b"x-upstream", b"sandbox: a script, not a model"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_json(send: Send, status: int, value: dict[str, Any]) -> None:
    await _start(send, status, b"application/json")
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})
