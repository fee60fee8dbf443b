"""Scripts for the scripted upstream: short responses in each dialect."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    Script,
    Send,
    Step,
    chunk,
    stream,
    stream_head,
)

USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
COMPLETION = {
    "id": "c",
    "object": "chat.completion",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "Hello."},
        }
    ],
    "usage": USAGE,
}
"""A whole response of Chat Completions."""
THOUGHT_SIGNATURE = {"google": {"thought_signature": "AYe4+/=="}}


def sse(payload: Any, event: str = "") -> bytes:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(payload)}\n\n".encode()


def chat_chunk(delta: dict[str, Any] | None = None, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return sse(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    )


def chat_events(words: Sequence[str] = ("Hello", " there", ".")) -> list[bytes]:
    usage = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": USAGE}
    return [
        chat_chunk({"role": "assistant", "content": ""}),
        *(chat_chunk({"content": word}) for word in words),
        chat_chunk(finish="stop"),
        sse(usage),
        b"data: [DONE]\n\n",
    ]


def chat(*words: str, ending: Script | None = None) -> Script:
    raw = b"".join(chat_events(words or ("Hello", " there", ".")))
    return stream(raw) if ending is None else stream(raw, ending=ending)


def responses_events(words: Iterable[str] = ("Hello", " there", ".")) -> list[bytes]:
    words = list(words)
    base = {"id": "resp_1", "object": "response", "model": "gpt-x", "output": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    part = {"type": "output_text", "text": "".join(words), "annotations": []}
    whole = {**item, "content": [part]}
    usage = {
        "input_tokens": 12,
        "output_tokens": 5,
        "total_tokens": 17,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    ended = {**base, "status": "completed", "output": [whole], "usage": usage}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**base, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        *({"type": "response.output_text.delta", **place, "delta": word} for word in words),
        {"type": "response.output_text.done", **place, "text": "".join(words)},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
        {"type": "response.completed", "response": ended},
    ]
    return [sse(each | {"sequence_number": n}, each["type"]) for n, each in enumerate(events)]


def responses(*words: str) -> Script:
    return stream(b"".join(responses_events(words or ("Hello", " there", "."))))


def claude_events(words: Sequence[str] = ("Hello", " there", ".")) -> list[bytes]:
    start = {
        "id": "msg_upstream",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 12, "output_tokens": 1},
    }
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": word},
            }
            for word in words
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 5},
        },
        {"type": "message_stop"},
    ]
    return [sse(each, each["type"]) for each in events]


def pieces(raw: Sequence[bytes], *ending: Step) -> Script:
    """Return a script with each piece in a chunk of its own, then ``ending``."""
    steps: list[Step] = [stream_head(), *(chunk(piece) for piece in raw)]
    return [*steps, *ending]


def sent_bytes(sent: Script) -> bytes:
    """Return the bytes of all ``Send`` steps of a script."""
    return b"".join(step.raw for step in sent if isinstance(step, Send))


def late_signature(*call_ids: str) -> Script:
    """Return a Chat script whose thought signatures follow after the arguments of their calls.

    Without ids it has one call, ``call_1``.
    """
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for index, call_id in enumerate(call_ids or ["call_1"]):
        function = {"name": "f", "arguments": '{"a":1}'}
        call = {"index": index, "id": call_id, "function": function}
        late = {"index": index, "extra_content": THOUGHT_SIGNATURE}
        deltas += [{"tool_calls": [call]}, {"tool_calls": [late]}]
    events = map(chat_chunk, deltas)
    finish = chat_chunk({}, "tool_calls")
    return pieces([*events, finish], LAST_CHUNK)
