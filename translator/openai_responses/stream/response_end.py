"""Find out whether a final response is complete, whatever its status is."""

from collections.abc import Mapping
from typing import Any, Final

from translator.anthropic.stop_reason import is_at_limit
from translator.anthropic.usage import Usage
from translator.dialect import ResponseContext
from translator.notes import Note
from translator.stream.tool_arguments import is_unclosed

NO_INCOMPLETE_REASON: Final = Note(
    "stop_reason", "emulated", "the response is incomplete without a reason"
)
"""The stop reason is then ``max_tokens``: a truncated response, above all a truncated tool call,
must not pass as complete."""


def find_incomplete_reason(response: Mapping[str, Any], notes: list[Note]) -> str:
    """Return why a response is incomplete; "" if it is reported as complete."""
    details = response.get("incomplete_details")
    if isinstance(details, dict) and details.get("reason"):
        return str(details["reason"])
    if response.get("status") != "incomplete":
        return ""
    notes.append(NO_INCOMPLETE_REASON)
    return "max_output_tokens"


def is_cut(
    response: Mapping[str, Any], usage: Usage, arguments: str | None, context: ResponseContext
) -> bool:
    """Return whether the output limit ended a response that is reported as complete.

    ``arguments``: those of the last call; None without calls. A complete call is not cut, even at
    the limit. A cut call whose tokens were not counted is recognized by arguments that end too
    early.
    """
    limit = response.get("max_output_tokens")
    if type(limit) is not int:
        limit = context.max_tokens or 0
        limit = max(limit, context.target.profile.min_output_tokens) if limit else 0
    if arguments is None:
        return is_at_limit(usage, limit)
    return (usage.output is None or is_at_limit(usage, limit)) and is_unclosed(arguments)
