"""Why an answer stopped, in Anthropic's words: one ordered rule for every upstream."""

from collections.abc import Mapping
from typing import Any, Final

from .usage import Usage

INCOMPLETE_REASONS: Final[Mapping[str, str]] = {
    "max_output_tokens": "max_tokens",
    "max_tokens": "max_tokens",  # servers that speak Chat, or Anthropic's own API, underneath
    "length": "max_tokens",
    "content_filter": "refusal",
}
"""``incomplete_details.reason`` of a Responses answer; any other one ends the turn."""

CUT: Final = frozenset({"max_tokens", "model_context_window_exceeded"})

NEARLY_FULL: Final = 0.98
"""Of a window: servers keep a few tokens for themselves."""

TOOL_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
"""Output items that the client has to answer."""


def stop_reason_of(
    cause: str | None, *, refused: bool, called_tool: bool, window_full: bool = False
) -> str:
    """The stop reason for the cause that the upstream named, in Anthropic's words or None.

    A cut beats a tool call, which must not be executed in half; a call that was made beats
    whatever the upstream says; ``tool_use`` without a call is refused by strict clients.
    """
    if cause == "max_tokens" and window_full:
        return "model_context_window_exceeded"
    if cause in CUT:
        return str(cause)
    if refused or cause == "refusal":
        return "refusal"
    if called_tool:
        return "tool_use"
    return "end_turn"


def is_window_full(usage: Usage, window: int, max_tokens: int | None) -> bool:
    """Whether a cut answer ended at the model's window and not at the client's limit.

    ``window`` is in tokens, 0: not known. Source: mapping.md 3.3, rule 3.
    """
    if not window or max_tokens is None or usage.source != "reported" or usage.output is None:
        return False
    parts = (usage.input, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h)
    total = usage.output + sum(part or 0 for part in parts)
    return usage.output < max_tokens and total >= window * NEARLY_FULL


def derive_stop_reason(response: dict[str, Any]) -> str:
    """The stop reason of a whole Responses answer.

    A failed answer has none: check its ``status`` first, here it reads as ``end_turn``.
    """
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, Mapping) else None
    items = _mappings(response.get("output"))
    return stop_reason_of(
        INCOMPLETE_REASONS.get(reason) if isinstance(reason, str) else None,
        refused=any(
            part.get("type") == "refusal"
            for item in items
            for part in _mappings(item.get("content"))
        ),
        called_tool=any(item.get("type") in TOOL_CALLS for item in items),
    )


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
