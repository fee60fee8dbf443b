"""Unusual ends of a response: other finish reasons and invalid usage."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.fakes.upstreams import script_steps
from tests.fakes.upstreams.script_steps import Step
from tests.proxy.gateway import upstream_scripts

USAGE: dict[str, Any] = {
    "negative": -5,
    "huge": 10**18,
    "null": None,
    "text": "12",  # is read as a number
    "words": "twelve",
    "nan": float("nan"),
}
INCOMPLETE = {"max_output_tokens", "content_filter"}


def finish(
    dialect: str, *, finish: str, usage: str = "reported", bare: bool = False
) -> Iterator[Step]:
    """Build the end of a response. ``bare``: the last event does not repeat the output."""
    yield from (script_steps.chunk(each) for each in ENDING[dialect](finish, usage, bare))


def _change_usage(reported: dict[str, Any], usage: str) -> dict[str, Any] | None:
    if usage == "reported":
        return reported
    return None if usage == "absent" else dict.fromkeys(reported, USAGE[usage])


def _chat(reason: str, usage: str, bare: bool) -> list[bytes]:
    counts = _change_usage(upstream_scripts.USAGE, usage)
    reported = {"tool": "tool_calls", "": "stop"}.get(reason, reason)
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": counts}
    return [
        upstream_scripts.chat_chunk(finish=reported),
        *([upstream_scripts.sse(chunk)] if counts is not None else []),
        b"data: [DONE]\n\n",
    ]


def _responses(reason: str, usage: str, bare: bool) -> list[bytes]:
    *closing, last = upstream_scripts.responses_events()[6:]
    end = json.loads(last.partition(b"data: ")[2])
    response = end["response"]
    response["usage"] = _change_usage({"input_tokens": 12, "output_tokens": 5}, usage)
    if reason == "tool" or bare:
        response["output"], closing = [], []
    if reason in INCOMPLETE:
        response |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        end["type"] = "response.incomplete"
    return [*closing, upstream_scripts.sse(end, end["type"])]


ENDING: dict[str, Callable[[str, str, bool], list[bytes]]] = {
    "chat": _chat,
    "responses": _responses,
}
