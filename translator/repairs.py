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
Mend = Callable[[Body, str], Body | None]
"""The body without the thing, by what the refusal says; None: the body has nothing of it."""

REFUSED: Final = frozenset({400, 422})
UNSUPPORTED: Final = re.compile(
    r"unsupported|(?:not|n't) support|unknown|unrecogni[sz]ed|unexpected"
    r"|not permitted|extra_forbidden|extra inputs|must be verified|not allowed",
    re.IGNORECASE,
)
OUTPUT_LIMITS: Final = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
CEILINGS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"at most (\d{1,9}) (?:completion|output) tokens",  # OpenAI, Chat
        r"<= ?`?(\d{1,9})",  # OpenAI, Responses
        r"less than or equal to `?(\d{1,9})",  # Groq
        r"[Rr]ange of `?max_tokens`? (?:is|should be) \[\d+, ?(\d{1,9})\]",  # DeepSeek, Qwen
        r"> (\d{1,9}), which is the maximum",  # Anthropic, behind a proxy that speaks Chat
        r"> (\d{1,9}) - (\d{1,9})\)",  # vLLM: the window less the prompt
        r"is (\d{1,9}) tokens\. However, you requested \d+ tokens \((\d{1,9}) in the",  # and before
    )
)
"""How servers say how much output there may be: a number, or two whose difference it is."""
LEAST_ROOM: Final = 1_024
"""Tokens. Where the prompt leaves less of the window the client is told to shorten it."""


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to do without: what the refusal says of it, and the body without it."""

    names: re.Pattern[str]
    mend: Mend
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
            mended = fix.mend(body, text)
            if mended is not None:
                return Repair(body=mended, note=fix.note)
        return None

    return repair


def _without(*names: str) -> Mend:
    def mend(body: Body, _: str) -> Body | None:
        if not body.keys() & {*names}:
            return None
        return {name: value for name, value in body.items() if name not in names}

    return mend


def _renamed(old: str, new: str) -> Mend:
    def mend(body: Body, _: str) -> Body | None:
        if old not in body:
            return None
        return {new if name == old else name: value for name, value in body.items()}

    return mend


def _without_reasoning_items(body: Body, _: str) -> Body | None:
    items = body.get("input") or []
    kept = [item for item in items if item.get("type") != "reasoning"]
    return {**body, "input": kept} if len(kept) < len(items) else None


def _without_summary(body: Body, _: str) -> Body | None:
    reasoning = body.get("reasoning") or {}
    if "summary" not in reasoning:
        return None
    rest = {name: value for name, value in reasoning.items() if name != "summary"}
    mended = {**body, "reasoning": rest}
    if not rest:
        del mended["reasoning"]
    return mended


def _without_thoughts(body: Body, _: str) -> Body | None:
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


def _clamped(body: Body, told: str) -> Body | None:
    """A body that asks for no more output than the refusal says there may be."""
    found = next((match for ceiling in CEILINGS if (match := ceiling.search(told))), None)
    if found is None:
        return None
    most, *taken = map(int, found.groups())
    room = most - sum(taken)
    if room < (LEAST_ROOM if taken else 1):
        return None
    too_much = {
        n for n in OUTPUT_LIMITS & body.keys() if isinstance(body[n], int) and body[n] > room
    }
    return body | dict.fromkeys(too_much, room) if too_much else None


def _without_reasoning(body: Body, _: str) -> Body | None:
    """To leave the effort out would not do: models that think by themselves refuse that, too."""
    if body.get("reasoning_effort") == "none" or not body.get("tools"):
        return None
    return {**body, "reasoning_effort": "none"}


def _with_thoughts(body: Body, _: str) -> Body | None:
    """A space for each answer of old that has no thoughts: Moonshot takes "" for missing."""
    messages = body.get("messages") or []
    mended = [
        {**message, "reasoning_content": " "}
        if message.get("role") == "assistant" and not message.get("reasoning_content")
        else message
        for message in messages
    ]
    return {**body, "messages": mended} if mended != messages else None


def _field(name: str, mend: Mend, note: Note) -> Fix:
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
_OUTPUT_LIMIT: Final = Fix(
    re.compile(r"\bmax_(?:completion_|output_)?tokens\b|in the completion"),
    _clamped,
    Note("max_tokens", "clamped", "more than the upstream's model can write: sent with its limit"),
    unsupported=False,
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
    _OUTPUT_LIMIT,
)
CHAT_FIXES: Final = (
    Fix(  # DeepSeek and Moonshot, of a history that another model has begun
        re.compile(
            r"(?:missing|must (?:be|include|contain)).{0,40}reasoning_content"
            r"|reasoning_content.{0,40}(?:missing|must be)",
            re.IGNORECASE,
        ),
        _with_thoughts,
        Note("messages", "emulated", "the upstream wants thoughts with each answer: sent a space"),
        unsupported=False,
    ),
    Fix(  # gpt-5.4 and later; they reason beside tools through Responses alone
        re.compile(r"tools with reasoning_effort", re.IGNORECASE),
        _without_reasoning,
        Note("thinking", "dropped", "the upstream does not reason beside tools: sent without"),
    ),
    *_SAMPLING,
    _STREAM_OPTIONS,
    _OUTPUT_LIMIT,
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
