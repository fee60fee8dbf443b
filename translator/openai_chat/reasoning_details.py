"""Read reasoning under each vendor's field names; preserve what must be sent back unchanged.

OpenRouter streams ``reasoning_details``, a list, in fragments and requires the whole list in later
requests.

Source: https://openrouter.ai/docs/use-cases/reasoning-tokens
"""

from collections.abc import Mapping
from typing import Any, Final

REASONING_FIELDS: Final = (
    "reasoning_content",
    "reasoning",
    "reasoning_text",
    "thinking",
    "thinking_blocks",  # LiteLLM, usually together with reasoning_content
)
"""Fields with reasoning text; only the first non-empty one is read, since several repeat the
text."""

REASONING_DETAILS: Final = "reasoning_details"
HIDDEN_TEXT: Final = "hidden_reasoning"
"""The field of a recorded call with the reasoning before it, if the client asked for no thinking.
DeepSeek and Moonshot require it with the call."""
"""OpenRouter's field. A tool call's id carries it if the client asked for no thinking blocks."""

OPAQUE: Final = "reasoning_opaque"
"""Copilot's field for encrypted reasoning, which later requests must repeat with the text.

Source: https://github.com/sst/opencode, its provider for Copilot
"""

STREAMED_FIELDS: Final = ("text", "summary", "data")
"""Fields whose fragments are concatenated; for other fields, the last non-null value is used."""

TEXT_FIELDS: Final = ("text", "thinking", "content", "summary")
"""Fields that may contain the text of a reasoning part."""


def read_details(delta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reasoning fragments in one delta, in whichever form the server sends them.

    Encrypted reasoning is included, as a fragment with its own type.
    """
    entries = delta.get("reasoning_details")
    details = (
        [part for part in entries if isinstance(part, dict)] if isinstance(entries, list) else []
    )
    if OPAQUE in delta and isinstance(delta[OPAQUE], str) and delta[OPAQUE]:
        details.append({"type": OPAQUE, "data": delta[OPAQUE]})
    return details


def split_opaque(details: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the fragments without encrypted reasoning, and the last encrypted reasoning."""
    opaque = [part.get("data") for part in details if part.get("type") == OPAQUE]
    readable = [part for part in details if part.get("type") != OPAQUE]
    return readable, str(opaque[-1]) if opaque else ""


def reasoning_text(value: Any) -> str:
    """Return the text of a reasoning value of any structure.

    Databricks nests the text in ``summary``, Mistral in ``thinking``, others in ``content`` or
    ``text``.
    """
    if type(value) is str:
        return value
    if type(value) is list:
        return "".join(map(reasoning_text, value))
    if type(value) is dict:
        for name in TEXT_FIELDS:
            if name in value and (text := reasoning_text(value[name])):
                return text
    return ""


def details_text(details: list[dict[str, Any]]) -> str:
    """Return the readable text of the fragments; encrypted fragments have no text."""
    return "".join(
        text
        for part in details
        for text in (part.get("text"), part.get("summary"))
        if isinstance(text, str)
    )


def merge_details(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join consecutive fragments with the same type and index, which belong to one entry."""
    entries: list[dict[str, Any]] = []
    for part in details:
        last = entries[-1] if entries else None
        if last is None or _entry_key(last) != _entry_key(part) or part.get("index") is None:
            entries.append(dict(part))
            continue
        for name, value in part.items():
            if (
                name in STREAMED_FIELDS
                and isinstance(value, str)
                and isinstance(last.get(name), str)
            ):
                last[name] += value
            elif value is not None:
                last[name] = value
    return entries


def _entry_key(part: dict[str, Any]) -> tuple[Any, Any]:
    return part.get("type"), part.get("index")
