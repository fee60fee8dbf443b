"""A whole Anthropic message as the events of the stream that it would have been."""

from typing import Any, Final

from translator.anthropic.types import Event, Message
from translator.arguments import compact_json

Delta = dict[str, Any]

LAST: Final = ("stop_reason", "stop_sequence", "stop_details")
"""Fields of a message that a stream tells at its end."""


def events_of(message: Message) -> list[Event]:
    """The stream of a message; folding it gives the message again."""
    if message["type"] != "message":
        raise ValueError(f"a whole answer is a message, not {message['type']!r}")
    usage = message["usage"]
    start = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    start.pop("stop_details", None)
    events: list[Event] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(message["content"]):
        opening, deltas = _parts(block)
        events.append({"type": "content_block_start", "index": index, "content_block": opening})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    end = {name: message[name] for name in LAST if name in message}
    events.append({"type": "message_delta", "delta": end, "usage": usage})
    events.append({"type": "message_stop"})
    return events


def _parts(block: dict[str, Any]) -> tuple[dict[str, Any], list[Delta]]:
    """What a block says in its start, and what in deltas."""
    match block["type"]:
        case "text":
            deltas: list[Delta] = [
                {"type": "citations_delta", "citation": each}
                for each in block.get("citations") or ()
            ]
            start = {
                name: value for name, value in block.items() if name != "citations" or not value
            }
            said = [{"type": "text_delta", "text": block["text"]}] if block["text"] else []
            return {**start, "text": ""}, [*said, *deltas]
        case "thinking":
            shown = block["thinking"]
            signature = {"type": "signature_delta", "signature": block.get("signature") or ""}
            thought = [{"type": "thinking_delta", "thinking": shown}] if shown else []
            return {**block, "thinking": "", "signature": ""}, [*thought, signature]
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            arguments = compact_json(block["input"]) if block["input"] else ""
            delta = {"type": "input_json_delta", "partial_json": arguments}
            return {**block, "input": {}}, [delta]
        case _:
            return block, []
