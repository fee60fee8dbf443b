"""What the answer tests share: chunks, and the message that they fold into."""

from typing import Any

from tests.fakes.grammar import faults_of_events
from tests.translator.openai_chat.requests import target
from translator.anthropic.fold import fold
from translator.carrier import CarrierKeys
from translator.dialect import AnswerContext
from translator.openai_chat.stream import ChatStream

USAGE = {"prompt_tokens": 20, "completion_tokens": 8}


def stream(
    *, keys: CarrierKeys | None = None, profile: str = "generic", **fields: Any
) -> ChatStream:
    capabilities = fields.pop("capabilities", {})
    who = target(profile, keys=keys, **capabilities)
    return ChatStream(AnswerContext(**({"message_id": "msg_1", "target": who} | fields)))


def chunk(finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "model": "qwen3", "choices": [choice]}


def usage(**counts: Any) -> dict[str, Any]:
    return {"choices": [], "usage": USAGE | counts}


def piece(**fields: Any) -> dict[str, Any]:
    """One element of ``tool_calls``; name and arguments go where they belong."""
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    return {**fields, "function": function}


def calls(*pieces: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return chunk(finish, tool_calls=list(pieces))


def whole(message: dict[str, Any], finish: str | None = "stop", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "chatcmpl-1", "model": "qwen3", "choices": [choice], "usage": USAGE, **fields}


def hear(heard: ChatStream, *chunks: dict[str, Any]) -> list[dict[str, Any]]:
    """Feed and end; the events must be legal."""
    events = [event for each in chunks for event in heard.feed(each)] + heard.end()
    assert faults_of_events(events, raw_tool_input=True) == []
    return events


def message(*chunks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return fold(hear(stream(**fields), *chunks))


def tool_uses(told: dict[str, Any]) -> list[tuple[str, str, Any]]:
    return [(b["id"], b["name"], b["input"]) for b in told["content"] if b["type"] == "tool_use"]
