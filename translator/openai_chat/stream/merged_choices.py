"""Merge a response that is sent as several choices, and detect content that is sent twice."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from .finish_reason import FINISH_REASONS
from .text_blocks import Kind, TextBlocks
from .tool_calls import ToolCalls

Choice = dict[str, Any]

FIRST_INDEXES: Final = (None, 0, "0")
"""Values of ``index`` for the first choice, the only one requested."""


def merge_choices(first: Choice, choices: Sequence[Any]) -> Choice:
    """Merge the choices that form one response: Copilot sends text and tool calls separately.

    A choice without an index is always merged. A choice with an index is merged if the finish
    reason of the first choice announces tool calls that the first choice does not contain. Any
    other choice was not requested and is ignored. Source:
    https://github.com/ericc-ch/copilot-api/pull/81, https://github.com/HKUDS/nanobot/pull/1555
    """
    continuations = [
        c for c in choices if isinstance(c, dict) and c is not first and _continues(c, first)
    ]
    if not continuations:
        return first
    key = "delta" if isinstance(first.get("delta"), dict) else "message"
    merged: dict[str, Any] = {}
    for choice in (first, *continuations):
        part = choice.get(key)
        for name, value in part.items() if isinstance(part, dict) else ():
            merged[name] = _join_values(merged.get(name), value)
    reasons = (choice.get("finish_reason") for choice in (first, *continuations))
    return first | {key: merged, "finish_reason": next(filter(None, reasons), None)}


def _continues(choice: Choice, first: Choice) -> bool:
    if not choice.get("index"):
        return True
    message = first.get("message")
    return (
        isinstance(message, dict)
        and not message.get("tool_calls")
        and FINISH_REASONS.get(str(first.get("finish_reason"))) == "tool_use"
    )


def _join_values(previous: Any, value: Any) -> Any:
    if type(previous) is type(value) and isinstance(value, str | list) and previous != value:
        return previous + value
    return previous or value


def message_of(choice: Choice) -> Any:
    """Return the content of a choice without a delta: its message, or its plain text.

    Some servers stream choices of the legacy completions API, or text in place of the delta.
    """
    message = choice.get("message")
    if message is None:
        delta = choice.get("delta")
        text = choice.get("text") or delta
        message = {"content": text} if text and isinstance(text, str) else delta
    return message


def is_cumulative(
    message: dict[str, Any],
    reasoning_fields: Sequence[str],
    text_blocks: TextBlocks,
    was_cumulative: bool,
) -> bool:
    """Return whether a message repeats all content so far, as from servers without deltas.

    A message equal to the content so far counts as a repetition only if the previous message was
    one, because the same word may occur twice in a row.
    """
    reasoning = (message.get(name) for name in reasoning_fields)
    message_texts: dict[Kind, str] = {
        "text": text_blocks.text_without_tags(message.get("content")),
        "thinking": next((value for value in reasoning if isinstance(value, str) and value), ""),
    }
    if not all(text_blocks.repeats(kind, text) for kind, text in message_texts.items()):
        return False
    return was_cumulative or any(
        text_blocks.has_kind(kind) and text_blocks.new_part(kind, text)
        for kind, text in message_texts.items()
    )


def new_part_of(
    message: dict[str, Any],
    reasoning_keys: Collection[str],
    text_blocks: TextBlocks,
    calls: ToolCalls,
) -> dict[str, Any]:
    """Return the fields of a message without the content that was streamed before.

    MiniMax ends each stream with a repetition of the whole message. If that message differs from
    the streamed content, the difference is ignored. ``reasoning_keys`` are the fields with
    reasoning.
    """
    has_reasoning = text_blocks.has_kind("thinking")
    new_parts: dict[str, Any] = {}
    for name, value in message.items():
        match name:
            case "tool_calls" if isinstance(value, list):
                new_parts[name] = [call for call in value if not calls.has_call(call)]
            case "content" if has_reasoning or text_blocks.has_kind("text"):
                new_parts[name] = text_blocks.new_part("text", text_blocks.text_without_tags(value))
            case "refusal":
                new_parts[name] = _suffix_after(text_blocks.refusal, value)
            case "reasoning_details" if has_reasoning:
                pass
            case _ if has_reasoning and name in reasoning_keys:
                new_parts[name] = text_blocks.new_part("thinking", value)
            case _:
                new_parts[name] = value
    return new_parts


def _suffix_after(prefix: str, text: Any) -> str:
    if not isinstance(text, str) or not text.startswith(prefix):
        return ""
    return text[len(prefix) :]
