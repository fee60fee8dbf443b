"""What to try once more when an upstream refuses a body for one thing that it can do without.

Each dialect has a table of such things. A repair is proposed only where the refusal names the
thing, so that a real fault of the request is told at once. Source: mapping.md 2.4 and 5.2.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .dialect import Repair
from .notes import Note
from .upstream_errors.fields import read_error

Body = dict[str, Any]

REFUSED: Final = frozenset({400, 422})
UNSUPPORTED: Final = re.compile(
    r"unsupported|(?:not|n't) support|unknown|unrecogni[sz]ed|unexpected"
    r"|not permitted|extra_forbidden|extra inputs|must be verified|not allowed",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to do without: what the refusal says of it, and the body without it."""

    names: re.Pattern[str]
    mend: Callable[[Body], Body | None]  # None: the body has nothing of it
    note: Note
    unsupported: bool = True  # the refusal must also say that the thing is not supported


def repair_by(fixes: Sequence[Fix]) -> Callable[[Body, int, Any], Repair | None]:
    """A dialect's ``repair``: the first fix that the refusal asks for and the body allows."""

    def repair(body: Body, status: int, refusal: Any) -> Repair | None:
        if status not in REFUSED:
            return None
        told = read_error(refusal)
        text = f"{told.code} {told.param} {told.message}"
        for fix in fixes:
            if not fix.names.search(text) or (fix.unsupported and not UNSUPPORTED.search(text)):
                continue
            mended = fix.mend(body)
            if mended is not None:
                return Repair(body=mended, note=fix.note)
        return None

    return repair


def _without(*names: str) -> Callable[[Body], Body | None]:
    def mend(body: Body) -> Body | None:
        if not body.keys() & {*names}:
            return None
        return {name: value for name, value in body.items() if name not in names}

    return mend


def _renamed(old: str, new: str) -> Callable[[Body], Body | None]:
    def mend(body: Body) -> Body | None:
        if old not in body:
            return None
        return {new if name == old else name: value for name, value in body.items()}

    return mend


def _without_reasoning_items(body: Body) -> Body | None:
    items = body.get("input") or []
    kept = [item for item in items if item.get("type") != "reasoning"]
    return {**body, "input": kept} if len(kept) < len(items) else None


def _without_summary(body: Body) -> Body | None:
    reasoning = body.get("reasoning") or {}
    if "summary" not in reasoning:
        return None
    rest = {name: value for name, value in reasoning.items() if name != "summary"}
    mended = {**body, "reasoning": rest}
    if not rest:
        del mended["reasoning"]
    return mended


def _without_thoughts(body: Body) -> Body | None:
    """An Anthropic body without any thinking of earlier turns."""
    messages = []
    for message in body.get("messages") or []:
        content = message.get("content")
        if isinstance(content, list) and message.get("role") == "assistant":
            kept = [b for b in content if b.get("type") not in ("thinking", "redacted_thinking")]
            if len(kept) < len(content):
                message = {**message, "content": kept}  # noqa: PLW2901 - a copy in its place
        if message.get("content") != []:
            messages.append(message)
    return {**body, "messages": messages} if messages != (body.get("messages") or []) else None


def _field(name: str, mend: Callable[[Body], Body | None], note: Note) -> Fix:
    return Fix(re.compile(rf"\b{name}\b"), mend, note)


def _first(name: str, other: str) -> re.Pattern[str]:
    return re.compile(rf"\A(?:(?!\b{other}\b).)*\b{name}\b", re.DOTALL)


_SAMPLING: Final = tuple(
    _field(name, _without(name), Note(name, "dropped", "the upstream refused it: sent without"))
    for name in ("temperature", "top_p", "top_k")
)
_STREAM_OPTIONS: Final = _field(
    "stream_options",
    _without("stream_options"),
    Note("stream", "ignored", "the upstream refused stream_options: sent without"),
)
_MAX_TOKENS: Final = Note("max_tokens", "renamed", "the upstream knows it by its other name")

RESPONSES_FIXES: Final = (
    Fix(
        re.compile(r"encrypted_content"),
        _without_reasoning_items,
        Note("messages", "dropped", "the upstream refused its own reasoning: sent without"),
        unsupported=False,
    ),
    Fix(
        re.compile(r"reasoning\.summary|reasoning summar"),
        _without_summary,
        Note("thinking", "dropped", "the upstream refused a summary of its reasoning"),
    ),
    *_SAMPLING,
    _STREAM_OPTIONS,
)
CHAT_FIXES: Final = (
    *_SAMPLING,
    _STREAM_OPTIONS,
    # A refusal may name the other one as advice: the first that it names was refused.
    Fix(
        _first("max_tokens", "max_completion_tokens"),
        _renamed("max_tokens", "max_completion_tokens"),
        _MAX_TOKENS,
    ),
    Fix(
        _first("max_completion_tokens", "max_tokens"),
        _renamed("max_completion_tokens", "max_tokens"),
        _MAX_TOKENS,
    ),
)
ANTHROPIC_FIXES: Final = (
    Fix(
        re.compile(r"[Ii]nvalid `?signature`? in `?thinking`?"),
        _without_thoughts,
        Note("messages", "dropped", "the upstream refused a thinking block: sent without any"),
        unsupported=False,
    ),
    Fix(
        re.compile(r"Expected `?(?:redacted_)?thinking`?"),
        _without("thinking"),
        Note("thinking", "dropped", "the upstream wants thinking that is gone: sent without it"),
        unsupported=False,
    ),
)
