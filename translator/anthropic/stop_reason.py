"""Choose Anthropic's stop reason by one ordered rule for all upstream APIs."""

from collections.abc import Mapping
from typing import Any, Final

from translator.notes import Note
from translator.stream.tool_arguments import is_unclosed

from .usage import Usage

INCOMPLETE_REASONS: Final[Mapping[str, str]] = {
    "max_output_tokens": "max_tokens",
    # Servers built on Chat Completions or on Anthropic's API send these.
    "max_tokens": "max_tokens",
    "length": "max_tokens",
    "content_filter": "refusal",
}
"""OpenAI's ``incomplete_details.reason`` -> stop reason; any other reason gives ``end_turn``."""

LIMIT_REACHED: Final = Note(
    "stop_reason", "repaired", "the output limit ended a response that is reported as complete"
)

TRUNCATED: Final = frozenset({"max_tokens", "model_context_window_exceeded"})

FULL_WINDOW_RATIO: Final = 0.98
"""Share of the context window's tokens above which it counts as full; servers reserve a few
tokens."""

TOOL_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
"""Types of output items that require a result from the client."""


def choose_stop_reason(
    cause: str | None, *, refused: bool, called_tool: bool, window_full: bool = False
) -> str:
    """Return the stop reason; ``cause`` is the upstream's reason as an Anthropic value, or None.

    Truncation takes precedence over a tool call, because a partial call must not be executed. A
    complete tool call takes precedence over other causes. ``tool_use`` is never returned without a
    call, because SDKs that validate responses would reject the message.
    """
    if cause == "max_tokens" and window_full:
        return "model_context_window_exceeded"
    if cause in TRUNCATED:
        return str(cause)
    if refused or cause == "refusal":
        return "refusal"
    if called_tool:
        return "tool_use"
    return "end_turn"


def is_at_limit(usage: Usage, max_tokens: int | None) -> bool:
    """Return whether a response has as many output tokens as the request allows.

    Some servers report such a response as complete, not as truncated.
    """
    return bool(max_tokens) and usage.output is not None and usage.output >= (max_tokens or 0)


def is_window_full(usage: Usage, window: int, max_tokens: int | None) -> bool:
    """Return whether a truncated response ended at the context window, not at ``max_tokens``.

    ``window`` is the context window in tokens; 0 if unknown. Source: docs/mapping.md.
    """
    if not window or max_tokens is None or usage.source != "reported" or usage.output is None:
        return False
    input_counts = (usage.input, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h)
    total = usage.output + sum(count or 0 for count in input_counts)
    return usage.output < max_tokens and total >= window * FULL_WINDOW_RATIO


def derive_stop_reason(response: dict[str, Any]) -> str:
    """Return the stop reason of a complete response of the Responses API.

    A failed response has no stop reason, so check its ``status`` first: for such a response, this
    function returns ``end_turn``.
    """
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, Mapping) else None
    cause = INCOMPLETE_REASONS.get(reason) if isinstance(reason, str) else None
    items = _mappings(response.get("output"))
    calls = [item for item in items if item.get("type") in TOOL_CALLS]
    if not reason and _is_cut(response, calls):
        cause = "max_tokens"
    return choose_stop_reason(
        cause,
        refused=any(
            part.get("type") == "refusal"
            for item in items
            for part in _mappings(item.get("content"))
        ),
        called_tool=bool(calls),
    )


def _is_cut(response: dict[str, Any], calls: list[Mapping[str, Any]]) -> bool:
    """Return whether the output limit ended a response, which may be reported as complete."""
    arguments = calls[-1].get("arguments") if calls else None
    if isinstance(arguments, str):
        return is_unclosed(arguments)
    usage, limit = response.get("usage"), response.get("max_output_tokens")
    output = usage.get("output_tokens") if isinstance(usage, Mapping) else None
    return not calls and type(limit) is int and type(output) is int and 0 < limit <= output


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
