"""Helpers of the response tests: upstream events and their translation."""

import dataclasses
from typing import Any

from translator.dialect import ResponseContext, TranslationTarget
from translator.message_stream.events_to_message import fold
from translator.openai_responses import ResponsesStream

CONTEXT = ResponseContext(message_id="msg_1", model="claude-bridge")

Event = dict[str, Any]


def stream(**fields: Any) -> ResponsesStream:
    return ResponsesStream(dataclasses.replace(CONTEXT, **fields))


def stream_events(*events: Event, end: bool = True, **fields: Any) -> list[Event]:
    """Return the Anthropic events for these upstream events and the end of the stream."""
    machine = stream(**fields)
    streamed = [each for event in events for each in machine.feed(event)]
    return [*streamed, *(machine.end() if end else [])]


def message(*events: Event, **fields: Any) -> dict[str, Any]:
    """Return the message for these upstream events."""
    return fold(stream_events(*events, **fields))


def blocks(*events: Event, **fields: Any) -> list[dict[str, Any]]:
    return message(*events, **fields)["content"]


def kinds(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def target(profile: Any, **fields: Any) -> TranslationTarget:
    return TranslationTarget(upstream="local", model="gpt-5.2", profile=profile, **fields)


def created(**response: Any) -> Event:
    return {"type": "response.created", "response": {"id": "resp_1", "model": "m", **response}}


def completed(*output: Any, **response: Any) -> Event:
    body = {"id": "resp_1", "status": "completed", "output": list(output), **response}
    return {"type": "response.completed", "response": body}


def incomplete(reason: Any, *output: Any) -> Event:
    body = {
        "status": "incomplete",
        "output": list(output),
        "incomplete_details": {"reason": reason},
    }
    return {"type": "response.incomplete", "response": body}


def failed(code: str, text: str = "It broke.") -> Event:
    error = {"code": code, "message": text}
    return {"type": "response.failed", "response": {"status": "failed", "error": error}}


def added(index: Any, **item: Any) -> Event:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: Any, **item: Any) -> Event:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def text(piece: Any, index: Any = 0, part: Any = 0, **fields: Any) -> Event:
    place = {"output_index": index, "content_index": part}
    return {"type": "response.output_text.delta", "delta": piece, **place, **fields}


def arguments(piece: Any, index: Any = 0, **fields: Any) -> Event:
    kind = "response.function_call_arguments.delta"
    return {"type": kind, "output_index": index, "delta": piece, **fields}


def arguments_done(whole: Any, index: Any = 0) -> Event:
    kind = "response.function_call_arguments.done"
    return {"type": kind, "output_index": index, "arguments": whole}


def summary(piece: str, index: int = 0, part: int = 0) -> Event:
    kind = "response.reasoning_summary_text.delta"
    return {"type": kind, "output_index": index, "summary_index": part, "delta": piece}


def call(whole: Any = "{}", **fields: Any) -> dict[str, Any]:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather"}
    return item | {"arguments": whole} | fields


def output_message(*texts: str, **fields: Any) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": each, "annotations": []} for each in texts]
    return {"type": "message", "id": "msg_1", "content": parts} | fields


def reasoning(*texts: str, **fields: Any) -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": each} for each in texts]
    return {"type": "reasoning", "id": "rs_1", "summary": parts} | fields


def part_done(part: Any, index: int = 0) -> Event:
    """Return the event of a finished content part of the first item."""
    return {
        "type": "response.content_part.done",
        "output_index": 0,
        "content_index": index,
        "part": part,
    }


def notes(*events: Event, **fields: Any) -> list[str]:
    """Return the reasons of the notes."""
    machine = stream(**fields)
    for event in events:
        machine.feed(event)
    return [note.reason for note in machine.notes if note.path != "usage"]
