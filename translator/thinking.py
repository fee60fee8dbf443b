"""How much reasoning a request asks for, and whether its client wants to see it."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from .anthropic.types import MessagesRequest
from .notes import Note
from .profiles import EFFORTS, Effort, Profile

BUDGETS: Final[tuple[tuple[int, Effort], ...]] = (
    (1024, "low"),
    (8192, "medium"),
    (24576, "high"),
)
"""``budget_tokens`` up to the figure means the effort; above the last one it is ``xhigh``."""

ASKED_BY: Final = frozenset({"thinking", "output_config"})
"""Fields of a request without which nobody asks for anything of this."""

OFF: Final = frozenset({"disabled", "between_tools"})
"""Kinds of ``thinking`` under which nothing is thought before the answer."""


def effort_of(
    request: MessagesRequest, profile: Profile, said: tuple[Effort, str] | None = None
) -> tuple[Effort | None, list[Note]]:
    """The effort to ask the upstream for; None: its default, or it takes none.

    What a message ``said`` (with its path) beats ``output_config.effort``, which beats the budget
    of ``thinking``; ``thinking`` switched off beats all. What the server lacks becomes the highest
    effort that it has at or below.
    """
    thinking: Mapping[str, Any] = request.get("thinking") or {}
    wanted: Effort | None = (request.get("output_config") or {}).get("effort")
    path = "output_config.effort"
    kind = thinking.get("type")
    if kind in OFF:
        return _off(profile)
    if said is not None and said[0] != wanted:
        wanted, path = said
    if wanted is None and kind == "enabled":
        wanted, path = _effort_of_budget(thinking["budget_tokens"]), "thinking.budget_tokens"
    if wanted is None:
        return None, []
    return _clamped(wanted, path, profile)


def thinking_shown(request: MessagesRequest) -> Literal["shown", "omitted", "hidden"]:
    """What the client wants to see of the reasoning; nothing unless it asked."""
    thinking: Mapping[str, Any] = request.get("thinking") or {}
    if thinking.get("type") not in ("enabled", "adaptive"):
        return "hidden"
    return "omitted" if thinking.get("display") == "omitted" else "shown"


def end_of_last_words(messages: list[dict[str, Any]]) -> int:
    """Return the number of the message until which an effort holds for the answer to come.

    An effort in a system message begins with the words of the user that it directly follows, else
    with the next ones; the results of tools are no such words. So the efforts before the end of the
    last such words, and of the system messages behind them, hold. 0: there are no words.
    Source: Anthropic's "Per-message effort".
    """
    end = len(messages)
    for number in range(len(messages) - 1, -1, -1):
        if _has_words(messages[number]):
            return end
        if messages[number]["role"] != "system":
            end = number
    return 0


def _has_words(message: dict[str, Any]) -> bool:
    if message["role"] != "user":
        return False
    content = message["content"]
    return isinstance(content, str) or any(block["type"] != "tool_result" for block in content)


def _off(profile: Profile) -> tuple[Effort | None, list[Note]]:
    if "none" in profile.efforts:
        return "none", []
    if profile.efforts:
        lowest = profile.efforts[0]
        return lowest, [Note("thinking", "clamped", f"reasoning cannot be off here: {lowest}")]
    if profile.thinking_switch:
        return None, []
    return None, [Note("thinking", "ignored", "this upstream has no switch for reasoning")]


def _clamped(wanted: Effort, path: str, profile: Profile) -> tuple[Effort | None, list[Note]]:
    if wanted in profile.efforts:
        return wanted, []
    if not profile.efforts:
        fate: Literal["ignored", "dropped"] = (
            "ignored" if path.startswith("thinking") and profile.thinking_switch else "dropped"
        )
        return None, [Note(path, fate, "this upstream takes no reasoning effort")]
    # "none" is no lower effort but no reasoning at all: nobody asked for that.
    known = [effort for effort in profile.efforts if effort != "none"]
    if not known:
        return None, [Note(path, "dropped", "this upstream takes no reasoning effort")]
    limit = EFFORTS.index(wanted)
    below = [effort for effort in known if EFFORTS.index(effort) <= limit]
    effort = below[-1] if below else known[0]
    return effort, [Note(path, "clamped", f"{wanted!r} is {effort!r} on this upstream")]


def _effort_of_budget(tokens: int) -> Effort:
    return next((effort for limit, effort in BUDGETS if tokens <= limit), "xhigh")
