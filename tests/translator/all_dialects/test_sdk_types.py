"""The strict types of the official Python SDK accept every answer, streamed and whole.

Pydantic validates without conversion, and a field that the SDK does not know is an error. Blocks of
the beta API, such as MCP calls, are valid with the types of the beta API.
"""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from anthropic import BaseModel
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from pydantic import TypeAdapter, ValidationError

from tests.fakes.upstreams import recordings
from tests.for_each import for_each

from . import answers

BETA_BLOCKS = ('"mcp_tool_use"', '"mcp_tool_result"', '"compaction"')
"""The types of blocks that only the beta API has, as they are in the JSON."""


@cache
def types(*, beta: bool) -> tuple[TypeAdapter[Any], TypeAdapter[Any]]:
    """Return the validators of an event and of a message."""
    if beta:
        return TypeAdapter(BetaRawMessageStreamEvent), TypeAdapter(BetaMessage)
    return TypeAdapter(RawMessageStreamEvent), TypeAdapter(Message)


def faults(answer: answers.Answer) -> list[str]:
    """Return what the types refuse in the events and in the message."""
    beta = any(name in json.dumps(answer.events) for name in BETA_BLOCKS)
    event_type, message_type = types(beta=beta)
    found = [
        fault
        for event in answer.events
        if event["type"] not in {"ping", "error"}
        for fault in _faults(event_type, event)
    ]
    return found if answer.failed else [*found, *_faults(message_type, answer.typed_message)]


def _faults(adapter: TypeAdapter[Any], value: dict[str, Any]) -> list[str]:
    try:
        checked = adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        return [f"{fault['loc']}: {fault['msg']}" for fault in error.errors()]
    return [f"{path}: not a field of the SDK's type" for path in _unknown(checked, value["type"])]


def _unknown(value: Any, path: str) -> Iterator[str]:
    """Return the paths of the fields that a validated value has beside those of its types."""
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or {})
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _unknown(inner, f"{path}.{number}")


@pytest.mark.skipif(not answers.recorded(), reason=recordings.ABSENT)
@for_each("answer", answers.recorded(), ids=lambda answer: answer.name)
def test_the_python_types_accept_every_recorded_answer(answer):
    assert faults(answer) == []


@for_each("answer", answers.of_cases(), ids=lambda answer: answer.name)
def test_the_python_types_accept_the_answer_of_every_case(answer):
    assert faults(answer) == []


@for_each(
    "change",
    [
        {"content": [{"type": "text", "text": "Hi.", "colour": "red"}]},
        {"content": [{"type": "text", "text": None}]},
        {"usage": {"input_tokens": "1", "output_tokens": 1}},
        {"usage": None},
        {"stop_reason": "done"},
    ],
    ids=["unknown field", "null text", "number as a string", "null usage", "unknown stop reason"],
)
def test_the_python_types_reject_an_invalid_message(change):
    sound = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None,
        "content": [], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip

    assert _faults(types(beta=False)[1], sound) == []
    assert _faults(types(beta=False)[1], sound | change) != []
