"""Helpers of the response tests: chunks, and the message that they fold into."""

from typing import Any

from tests.fakes.upstreams.grammar import faults_of_events
from tests.translator.openai_chat.requests import target
from translator.dialect import ResponseContext
from translator.message_stream.events_to_message import fold
from translator.openai_chat.chat_stream import ChatStream
from translator.stream.reasoning_signature import SigningKeys

USAGE = {"prompt_tokens": 20, "completion_tokens": 8}


def stream(
    *, keys: SigningKeys | None = None, profile: str = "generic", **fields: Any
) -> ChatStream:
    capabilities = fields.pop("capabilities", {})
    who = target(profile, keys=keys, **capabilities)
    return ChatStream(ResponseContext(**({"message_id": "msg_1", "target": who} | fields)))


def chunk(finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "model": "qwen3", "choices": [choice]}


def usage(**counts: Any) -> dict[str, Any]:
    return {"choices": [], "usage": USAGE | counts}


def piece(**fields: Any) -> dict[str, Any]:
    """Return one element of ``tool_calls``; name and arguments go into ``function``."""
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    return {**fields, "function": function}


def calls(*pieces: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return chunk(finish, tool_calls=list(pieces))


def whole(message: dict[str, Any], finish: str | None = "stop", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "chatcmpl-1", "model": "qwen3", "choices": [choice], "usage": USAGE, **fields}


def feed_all(decoder: ChatStream, *chunks: dict[str, Any]) -> list[dict[str, Any]]:
    """Feed all chunks, end the stream and check that the events are legal."""
    events = [event for each in chunks for event in decoder.feed(each)] + decoder.end()
    assert faults_of_events(events, raw_tool_input=True) == []
    return events


def message(*chunks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return fold(feed_all(stream(**fields), *chunks))


def tool_uses(reply: dict[str, Any]) -> list[tuple[str, str, Any]]:
    return [(b["id"], b["name"], b["input"]) for b in reply["content"] if b["type"] == "tool_use"]
