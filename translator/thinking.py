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


def effort_of(request: MessagesRequest, profile: Profile) -> tuple[Effort | None, list[Note]]:
    """The effort to ask the upstream for; None: its default, or it takes none.

    ``output_config.effort`` beats the budget of ``thinking``; ``thinking`` switched off beats
    both. What the server lacks becomes the highest effort that it has at or below.
    """
    thinking: Mapping[str, Any] = request.get("thinking") or {}
    named = (request.get("output_config") or {}).get("effort")
    kind = thinking.get("type")
    if kind in OFF:
        return _off(profile)
    wanted: Effort | None = named
    path = "output_config.effort"
    if named is None and kind == "enabled":
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
