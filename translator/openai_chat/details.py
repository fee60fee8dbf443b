"""Reasoning under the names that vendors give it, and what of it goes back verbatim.

OpenRouter's ``reasoning_details`` are a list that streams in fragments and goes back whole.

Source: https://openrouter.ai/docs/use-cases/reasoning-tokens
"""

from collections.abc import Mapping
from typing import Any, Final

REASONING_FIELDS: Final = (
    "reasoning_content",
    "reasoning",
    "reasoning_text",
    "thinking",
    "thinking_blocks",  # LiteLLM, mostly beside the first
)
"""Where vendors put reasoning text; the first that is not empty counts (several hold the same)."""

OPAQUE: Final = "reasoning_opaque"
"""Copilot's name for reasoning that nobody but its model can read. It wants it back with the text.

Source: https://github.com/sst/opencode, its provider for Copilot
"""

GROWING: Final = ("text", "summary", "data")
"""Fields whose fragments are joined; of any other the last value that is not null counts."""

WRAPPED: Final = ("text", "thinking", "content", "summary")
"""Fields that a part of reasoning has its text in."""


def details_of(delta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fragments in one delta, whatever the server made of the list.

    What is opaque travels among them, as a fragment of a type of its own.
    """
    told = delta.get("reasoning_details")
    details = [part for part in told if isinstance(part, dict)] if isinstance(told, list) else []
    if OPAQUE in delta and isinstance(delta[OPAQUE], str) and delta[OPAQUE]:
        details.append({"type": OPAQUE, "data": delta[OPAQUE]})
    return details


def opaque_in(details: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The details without what is opaque, and that: the last that came, for there is one."""
    opaque = [part.get("data") for part in details if part.get("type") == OPAQUE]
    rest = [part for part in details if part.get("type") != OPAQUE]
    return rest, str(opaque[-1]) if opaque else ""


def thought_text(value: Any) -> str:
    """The text of reasoning, whatever it is wrapped in.

    Databricks puts it into a ``summary`` of parts, Mistral into ``thinking``, others into
    ``content`` or ``text``.
    """
    if type(value) is str:
        return value
    if type(value) is list:
        return "".join(map(thought_text, value))
    if type(value) is dict:
        for name in WRAPPED:
            if name in value and (text := thought_text(value[name])):
                return text
    return ""


def details_text(details: list[dict[str, Any]]) -> str:
    """The readable reasoning in the fragments; encrypted ones have none."""
    return "".join(
        text
        for part in details
        for text in (part.get("text"), part.get("summary"))
        if isinstance(text, str)
    )


def merged_details(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join neighbouring fragments of one entry (same type and index), as they were before."""
    merged: list[dict[str, Any]] = []
    for part in details:
        last = merged[-1] if merged else None
        if last is None or _entry(last) != _entry(part) or part.get("index") is None:
            merged.append(dict(part))
            continue
        for name, value in part.items():
            if name in GROWING and isinstance(value, str) and isinstance(last.get(name), str):
                last[name] += value
            elif value is not None:
                last[name] = value
    return merged


def _entry(part: dict[str, Any]) -> tuple[Any, Any]:
    return part.get("type"), part.get("index")
