"""Ends of an answer that are not the usual one: other reasons, and usage that cannot be."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.fakes import steps
from tests.fakes.steps import Step
from tests.proxy.gateway import scripts

USAGE: dict[str, Any] = {
    "negative": -5,
    "huge": 10**18,
    "null": None,
    "text": "12",
    "nan": float("nan"),
}
INCOMPLETE = {"max_output_tokens", "content_filter"}


def finish(dialect: str, *, finish: str, usage: str = "told", bare: bool = False) -> Iterator[Step]:
    """The end of an answer. ``bare``: it does not say again what was said."""
    yield from (steps.chunk(each) for each in ENDING[dialect](finish, usage, bare))


def _spoilt(told: dict[str, Any], usage: str) -> dict[str, Any] | None:
    if usage == "told":
        return told
    return None if usage == "absent" else dict.fromkeys(told, USAGE[usage])


def _chat(reason: str, usage: str, bare: bool) -> list[bytes]:
    counts = _spoilt(scripts.USAGE, usage)
    told = {"tool": "tool_calls", "": "stop"}.get(reason, reason)
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": counts}
    return [
        scripts.chat_chunk(finish=told),
        *([scripts.sse(chunk)] if counts is not None else []),
        b"data: [DONE]\n\n",
    ]


def _responses(reason: str, usage: str, bare: bool) -> list[bytes]:
    *closing, last = scripts.responses_events()[6:]
    end = json.loads(last.partition(b"data: ")[2])
    response = end["response"]
    response["usage"] = _spoilt({"input_tokens": 12, "output_tokens": 5}, usage)
    if reason == "tool" or bare:
        response["output"], closing = [], []
    if reason in INCOMPLETE:
        response |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        end["type"] = "response.incomplete"
    return [*closing, scripts.sse(end, end["type"])]


ENDING: dict[str, Callable[[str, str, bool], list[bytes]]] = {
    "chat": _chat,
    "responses": _responses,
}
