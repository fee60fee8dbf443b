"""Choose how much reasoning to request, and whether the client wants to see it."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from translator.anthropic import MessagesRequest
from translator.capabilities import EFFORTS, Effort, Profile
from translator.notes import Fate, Note

BUDGETS: Final[tuple[tuple[int, Effort], ...]] = (
    (1024, "low"),
    (8192, "medium"),
    (24576, "high"),
)
"""Maximum ``budget_tokens`` of each effort, ascending; a higher budget gives ``xhigh``."""

EFFORT_FIELDS: Final = frozenset({"thinking", "output_config"})
"""Request fields that can set a reasoning effort."""

THINKING_OFF: Final = frozenset({"disabled", "between_tools"})
"""Types of ``thinking`` that request no reasoning before the response."""


def choose_effort(
    request: MessagesRequest, profile: Profile, message_effort: tuple[Effort, str] | None = None
) -> tuple[Effort | None, list[Note]]:
    """Return the effort to request; None: use the upstream's default, or it has no efforts.

    If ``thinking`` is off, this takes precedence over all other sources. ``message_effort``, the
    effort in a message with its path, takes precedence over ``output_config.effort``, which takes
    precedence over the budget of ``thinking``. An effort that the server does not support becomes
    the next lower one.
    """
    thinking: Mapping[str, Any] = request.get("thinking") or {}
    requested: Effort | None = (request.get("output_config") or {}).get("effort")
    path = "output_config.effort"
    kind = thinking.get("type")
    if kind in THINKING_OFF:
        if "none" in profile.efforts:
            return "none", []
        if profile.efforts:
            lowest = profile.efforts[0]
            return lowest, [Note("thinking", "clamped", f"reasoning cannot be off here: {lowest}")]
        if profile.thinking_switch:
            return None, []
        return None, [Note("thinking", "ignored", "this upstream has no switch for reasoning")]
    if message_effort is not None and message_effort[0] != requested:
        requested, path = message_effort
    if requested is None and kind == "enabled":
        tokens, path = thinking["budget_tokens"], "thinking.budget_tokens"
        requested = next((effort for limit, effort in BUDGETS if tokens <= limit), "xhigh")
    if requested is None:
        return None, []
    if requested in profile.efforts:
        return requested, []
    # "none" is excluded, because it disables reasoning and is not a lower effort.
    supported = [effort for effort in profile.efforts if effort != "none"]
    if not supported:
        is_switched = (
            not profile.efforts and path.startswith("thinking") and profile.thinking_switch
        )
        fate: Fate = "ignored" if is_switched else "dropped"
        return None, [Note(path, fate, "this upstream does not accept a reasoning effort")]
    limit = EFFORTS.index(requested)
    below = [effort for effort in supported if EFFORTS.index(effort) <= limit]
    effort = below[-1] if below else supported[0]
    return effort, [Note(path, "clamped", f"{requested!r} is {effort!r} on this upstream")]


def thinking_visibility(request: MessagesRequest) -> Literal["shown", "omitted", "hidden"]:
    """Return how the response shows reasoning to the client; ``hidden`` unless requested."""
    thinking: Mapping[str, Any] = request.get("thinking") or {}
    if thinking.get("type") not in ("enabled", "adaptive"):
        return "hidden"
    return "omitted" if thinking.get("display") == "omitted" else "shown"


def end_of_last_user_text(messages: list[dict[str, Any]]) -> int:
    """Return the index of the message before which a message's effort applies to the response.

    An effort in a system message applies from the user text right before that message, otherwise
    from the next user text; tool results are not user text. So the efforts that apply are those
    before the end of the last user text, and those in the system messages right after it. The index
    is 0 if there is no user text. Source: Anthropic's documentation, "Per-message effort".
    """
    end = len(messages)
    for number in range(len(messages) - 1, -1, -1):
        if _has_user_text(messages[number]):
            return end
        if messages[number]["role"] != "system":
            end = number
    return 0


def _has_user_text(message: dict[str, Any]) -> bool:
    if message["role"] != "user":
        return False
    content = message["content"]
    return isinstance(content, str) or any(block["type"] != "tool_result" for block in content)
