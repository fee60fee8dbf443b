"""The sandbox as an ASGI application: two endpoints, a token count and a list of models."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from . import chat, responses
from .script import ERRORS, LABEL, Ask, Scene, scene_for, tokens

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

MODELS: Final = ("text", "thinking", "tools", "slow", "error-429", "error-500", "cut")
NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Spoken:
    """One dialect: how to read a request, how to tell a scene, how a stream ends."""

    read_ask: Callable[[Mapping[str, Any], int], Ask]
    told: Callable[[Ask, Scene, str], Any]
    named_events: bool
    """Events carry an ``event:`` line (Responses); else the stream ends with ``[DONE]`` (Chat)."""


DIALECTS: Final = {
    "/v1/responses": Spoken(responses.read_ask, responses.Told, named_events=True),
    "/v1/chat/completions": Spoken(chat.read_ask, chat.Told, named_events=False),
}


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    path = scope["path"].rstrip("/")
    body = await _body(receive)
    if path == "/v1/models":
        listed = [{"id": f"{LABEL}-{name}", "object": "model"} for name in MODELS]
        await _answer(send, 200, {"object": "list", "data": listed})
        return
    try:
        request = json.loads(body)
        if path == "/v1/responses/input_tokens":
            count = {"object": "response.input_tokens", "input_tokens": tokens(len(body))}
            await _answer(send, 200, count)
        elif path in DIALECTS:
            await _perform(DIALECTS[path], request, len(body), send)
        else:
            await _answer(send, 404, _error(404, f"the sandbox has no {path!r}"))
    except (LookupError, TypeError, ValueError, AttributeError):
        await _answer(send, 400, _error(400, "the sandbox cannot read this request"))


async def _perform(dialect: Spoken, request: dict[str, Any], size: int, send: Send) -> None:
    ask = dialect.read_ask(request, size)
    scene = scene_for(ask)
    if scene.status != 200:
        await _answer(send, scene.status, _error(scene.status, ERRORS[scene.status][1]))
        return
    told = dialect.told(ask, scene, f"{LABEL}{next(NUMBERS):08d}")
    if not request.get("stream"):
        await asyncio.sleep(scene.pause_s)
        await _answer(send, 200, told.whole)
        return
    await _start(send, 200, b"text/event-stream; charset=utf-8")
    events = list(told.events())
    for event in events[: len(events) // 2] if scene.cut else events:
        if "delta" in event.get("type", "delta"):
            await asyncio.sleep(scene.pause_s)
        name = f"event: {event['type']}\n" if dialect.named_events else ""
        line = f"{name}data: {json.dumps(event)}\n\n"
        await send({"type": "http.response.body", "body": line.encode(), "more_body": True})
    done = b"" if dialect.named_events or scene.cut else b"data: [DONE]\n\n"
    await send({"type": "http.response.body", "body": done})


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


async def _answer(send: Send, status: int, answer: dict[str, Any]) -> None:
    await _start(send, status, b"application/json")
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
