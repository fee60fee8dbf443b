"""Repair a body that the upstream rejected, if the error names one dispensable field.

The gateway sends a repaired body once. Each upstream API has a table of repairs. A repair applies
only if the upstream's error names the field, so that a real fault of the request is reported at
once. Source: docs/mapping.md 2.4 and 5.2.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from translator.dialect import Repair
from translator.notes import Note
from translator.upstream_errors.body_parser import read_error

Body = dict[str, Any]
BodyRepair = Callable[[Body, str], Body | None]
"""Takes a body and the upstream's error text; returns the changed body, or None if the body does
not have the field."""

REFUSAL_STATUSES: Final = frozenset({400, 422})
UNSUPPORTED: Final = re.compile(
    r"unsupported|(?:not|n't) support|unknown|unrecogni[sz]ed|unexpected"
    r"|not permitted|extra_forbidden|extra inputs|must be verified|not allowed",
    re.IGNORECASE,
)
OUTPUT_LIMITS: Final = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
OUTPUT_LIMIT_PATTERNS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"at most (\d{1,9}) (?:completion|output) tokens",  # OpenAI, Chat Completions
        r"<= ?`?(\d{1,9})",  # OpenAI, Responses API
        r"less than or equal to `?(\d{1,9})",  # Groq
        r"[Rr]ange of `?max_tokens`? (?:is|should be) \[\d+, ?(\d{1,9})\]",  # DeepSeek, Qwen
        r"> (\d{1,9}), which is the maximum",  # Anthropic, behind a Chat Completions proxy
        r"> (\d{1,9}) - (\d{1,9})\)",  # vLLM: the context window minus the prompt
        r"is (\d{1,9}) tokens\. However, you requested \d+ tokens \((\d{1,9}) in the",  # older vLLM
    )
)
"""Patterns of the output limit in error texts: one number, or two numbers to subtract."""
MIN_OUTPUT_ROOM: Final = 1_024
"""Tokens. If the prompt leaves less of the context window, the request is not repaired: the client
must shorten the prompt."""


@dataclass(frozen=True, slots=True)
class Fix:
    """One repair: a pattern of the upstream's error text, and a function to change the body."""

    pattern: re.Pattern[str]
    apply: BodyRepair
    note: Note
    must_be_unsupported: bool = True  # whether the error text must also match UNSUPPORTED


def repair_by(fixes: Sequence[Fix]) -> Callable[[Body, int, Any], Repair | None]:
    """Return a ``repair`` function: it applies the first fix that matches error text and body."""

    def repair(body: Body, status: int, refusal: Any) -> Repair | None:
        if status not in REFUSAL_STATUSES:
            return None
        error = read_error(refusal)
        text = f"{error.code} {error.param} {error.message}"
        for fix in fixes:
            if not fix.pattern.search(text) or (
                fix.must_be_unsupported and not UNSUPPORTED.search(text)
            ):
                continue
            repaired = fix.apply(body, text)
            if repaired is not None:
                return Repair(body=repaired, note=fix.note)
        return None

    return repair


def _drop_fields(*names: str) -> BodyRepair:
    def repair(body: Body, _: str) -> Body | None:
        if not body.keys() & {*names}:
            return None
        return {name: value for name, value in body.items() if name not in names}

    return repair


def _rename_field(old: str, new: str) -> BodyRepair:
    def repair(body: Body, _: str) -> Body | None:
        if old not in body:
            return None
        return {new if name == old else name: value for name, value in body.items()}

    return repair


def _drop_reasoning_items(body: Body, _: str) -> Body | None:
    items = body.get("input") or []
    other_items = [item for item in items if item.get("type") != "reasoning"]
    return {**body, "input": other_items} if len(other_items) < len(items) else None


def _drop_summary(body: Body, _: str) -> Body | None:
    reasoning = body.get("reasoning") or {}
    if "summary" not in reasoning:
        return None
    rest = {name: value for name, value in reasoning.items() if name != "summary"}
    repaired = {**body, "reasoning": rest}
    if not rest:
        del repaired["reasoning"]
    return repaired


def _drop_thinking(body: Body, _: str) -> Body | None:
    """Drop the thinking blocks of earlier turns from a Messages API body."""
    messages = []
    for message in body.get("messages") or []:
        content = message.get("content")
        if isinstance(content, list) and message.get("role") == "assistant":
            blocks = [b for b in content if b.get("type") not in ("thinking", "redacted_thinking")]
            if len(blocks) < len(content):
                message = {**message, "content": blocks}  # noqa: PLW2901 - replaced by a changed copy
        if message.get("content") != []:
            messages.append(message)
    return {**body, "messages": messages} if messages != (body.get("messages") or []) else None


def _clamp_output_limit(body: Body, refusal: str) -> Body | None:
    """Lower the output limit to the number in the upstream's error text."""
    match_ = next(
        (match for pattern in OUTPUT_LIMIT_PATTERNS if (match := pattern.search(refusal))), None
    )
    if match_ is None:
        return None
    limit, *used = map(int, match_.groups())
    room = limit - sum(used)
    if room < (MIN_OUTPUT_ROOM if used else 1):
        return None
    too_large = {
        n for n in OUTPUT_LIMITS & body.keys() if isinstance(body[n], int) and body[n] > room
    }
    return body | dict.fromkeys(too_large, room) if too_large else None


def _disable_reasoning(body: Body, _: str) -> Body | None:
    """Set the effort to "none"; models that reason by default also reject a missing effort."""
    if body.get("reasoning_effort") == "none" or not body.get("tools"):
        return None
    return {**body, "reasoning_effort": "none"}


def _fill_reasoning(body: Body, _: str) -> Body | None:
    """Add " " as reasoning to assistant messages without it: for Moonshot, "" counts as missing."""
    messages = body.get("messages") or []
    repaired = [
        {**message, "reasoning_content": " "}
        if message.get("role") == "assistant" and not message.get("reasoning_content")
        else message
        for message in messages
    ]
    return {**body, "messages": repaired} if repaired != messages else None


def _unsupported_field(name: str, repair: BodyRepair, note: Note) -> Fix:
    return Fix(re.compile(rf"\b{name}\b"), repair, note)


def _named_first(name: str, other: str) -> re.Pattern[str]:
    return re.compile(rf"\A(?:(?!\b{other}\b).)*\b{name}\b", re.DOTALL)


_SAMPLING: Final = tuple(
    _unsupported_field(
        name, _drop_fields(name), Note(name, "dropped", "the upstream refused it: sent without it")
    )
    for name in ("temperature", "top_p", "top_k")
)
_STREAM_OPTIONS: Final = _unsupported_field(
    "stream_options",
    _drop_fields("stream_options"),
    Note("stream", "ignored", "the upstream refused stream_options: sent without them"),
)
_OUTPUT_LIMIT: Final = Fix(
    re.compile(r"\bmax_(?:completion_|output_)?tokens\b|in the completion"),
    _clamp_output_limit,
    Note("max_tokens", "clamped", "more than the model's output limit: sent with that limit"),
    must_be_unsupported=False,
)
_MAX_TOKENS: Final = Note("max_tokens", "renamed", "the upstream accepts it under its other name")

RESPONSES_FIXES: Final = (
    Fix(
        re.compile(r"encrypted_content"),
        _drop_reasoning_items,
        Note("messages", "dropped", "the upstream refused its own reasoning: sent without it"),
        must_be_unsupported=False,
    ),
    Fix(
        re.compile(r"reasoning\.summary|reasoning summar"),
        _drop_summary,
        Note("thinking", "dropped", "the upstream refused a summary of its reasoning"),
    ),
    *_SAMPLING,
    _STREAM_OPTIONS,
    _OUTPUT_LIMIT,
)
CHAT_FIXES: Final = (
    Fix(  # DeepSeek and Moonshot, if another model produced the start of the history
        re.compile(
            r"(?:missing|must (?:be|include|contain)).{0,40}reasoning_content"
            r"|reasoning_content.{0,40}(?:missing|must be)",
            re.IGNORECASE,
        ),
        _fill_reasoning,
        Note(
            "messages",
            "emulated",
            "the upstream requires reasoning in each assistant message: sent a space",
        ),
        must_be_unsupported=False,
    ),
    Fix(  # gpt-5.4 and later reason with tools only in the Responses API
        re.compile(r"tools with reasoning_effort", re.IGNORECASE),
        _disable_reasoning,
        Note(
            "thinking", "dropped", "the upstream does not reason with tools: sent without reasoning"
        ),
    ),
    *_SAMPLING,
    _STREAM_OPTIONS,
    _OUTPUT_LIMIT,
    # An error text may recommend the other field, so the first field that it names is the rejected
    # one.
    Fix(
        _named_first("max_tokens", "max_completion_tokens"),
        _rename_field("max_tokens", "max_completion_tokens"),
        _MAX_TOKENS,
    ),
    Fix(
        _named_first("max_completion_tokens", "max_tokens"),
        _rename_field("max_completion_tokens", "max_tokens"),
        _MAX_TOKENS,
    ),
)
ANTHROPIC_FIXES: Final = (
    Fix(
        re.compile(r"[Ii]nvalid `?signature`? in `?thinking`?"),
        _drop_thinking,
        Note("messages", "dropped", "the upstream refused a thinking block: sent without thinking"),
        must_be_unsupported=False,
    ),
    Fix(
        re.compile(r"Expected `?(?:redacted_)?thinking`?"),
        _drop_fields("thinking"),
        Note(
            "thinking",
            "dropped",
            "the upstream requires thinking that is missing: sent without the field",
        ),
        must_be_unsupported=False,
    ),
)
