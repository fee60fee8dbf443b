"""Convert a complete Anthropic message to the events of an equivalent stream."""

from typing import Any, Final

from translator.anthropic.types import Event, Message
from translator.stream.tool_arguments import compact_json

Delta = dict[str, Any]

FINAL_FIELDS: Final = ("stop_reason", "stop_sequence", "stop_details")
"""Fields of a message that a stream sends in its final ``message_delta``."""


def message_to_events(message: Message) -> list[Event]:
    """Return the stream events of a message; combining the events again gives the same message."""
    if message["type"] != "message":
        raise ValueError(f"a whole answer is a message, not {message['type']!r}")
    usage = message["usage"]
    start = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    start.pop("stop_details", None)
    events: list[Event] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(message["content"]):
        content_block, deltas = _start_and_deltas(block)
        events.append(
            {"type": "content_block_start", "index": index, "content_block": content_block}
        )
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    end = {name: message[name] for name in FINAL_FIELDS if name in message}
    events.append({"type": "message_delta", "delta": end, "usage": usage})
    events.append({"type": "message_stop"})
    return events


def _start_and_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[Delta]]:
    """Split a content block into the block in its start event, and its deltas."""
    match block["type"]:
        case "text":
            deltas: list[Delta] = [
                {"type": "citations_delta", "citation": citation}
                for citation in block.get("citations") or ()
            ]
            start = {
                name: value for name, value in block.items() if name != "citations" or not value
            }
            text_deltas = [{"type": "text_delta", "text": block["text"]}] if block["text"] else []
            return {**start, "text": ""}, [*text_deltas, *deltas]
        case "thinking":
            text = block["thinking"]
            signature = {"type": "signature_delta", "signature": block.get("signature") or ""}
            thinking_deltas = [{"type": "thinking_delta", "thinking": text}] if text else []
            return {**block, "thinking": "", "signature": ""}, [*thinking_deltas, signature]
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            value = block["input"]  # a text is arguments that are no valid JSON
            arguments = value if isinstance(value, str) else compact_json(value) if value else ""
            delta = {"type": "input_json_delta", "partial_json": arguments}
            return {**block, "input": {}}, [delta]
        case _:
            return block, []
