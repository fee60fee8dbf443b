"""Repair a body that the upstream rejected, if the error names one dispensable field.

The gateway sends a repaired body a few times at most. Each upstream API has a table of repairs. A
repair applies only if the upstream's error names the field, so that a real fault of the request is
reported at once. Source: docs/mapping.md.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from translator.dialect import Repair
from translator.notes import Note
from translator.request.history_shapes import (
    merge_turns,
    move_system_text,
    split_calls,
    without_images,
    write_calls_as_text,
)
from translator.stream.tool_arguments import compact_json
from translator.upstream_errors.body_parser import read_error
from translator.upstream_errors.mapping import NO_IMAGES
from translator.upstream_errors.token_limits import (
    OUTPUT_WORD,
    read_output_limit,
    read_token_limits,
)

Body = dict[str, Any]
BodyRepair = Callable[[Body, str], Body | None]
"""Takes a body and the upstream's error text; returns the changed body, or None if the body does
not have the field."""

BAD_REQUEST: Final = frozenset({400, 422})
REFUSAL_STATUSES: Final = frozenset({*BAD_REQUEST, 404, 413, 500})
"""Statuses with which servers reject a part of a request: llama.cpp and LiteLLM also send 500,
MLX 404, and some servers send 413 if the output limit is too large."""
UNSUPPORTED: Final = re.compile(
    r"unsupported|(?:not|n't) support|unknown|unrecogni[sz]ed|unexpected"
    r"|not permitted|extra_forbidden|extra inputs|must be verified|not allowed",
    re.IGNORECASE,
)
OUTPUT_LIMITS: Final = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
MIN_OUTPUT_ROOM: Final = 1_024
"""Tokens. If the prompt leaves less of the context window, the request is not repaired: the client
must shorten the prompt."""
BYTES_PER_TOKEN: Final = 3
"""A low average, so that the estimated prompt is too long rather than too short."""
TOKENS_PER_DATA_URL: Final = 1_600
SPARE_TOKENS: Final = 16
"""SGLang requires the total to be smaller than the window, not equal to it."""
MIN_OUTPUT: Final = re.compile(r"(?:>= ?|greater than or equal to |at least )`?(\d{1,4})(?!\d)")
DATA_URL: Final = re.compile(r'"data:[^"]*"')


@dataclass(frozen=True, slots=True)
class Fix:
    """One repair: a pattern of the upstream's error text, and a function to change the body."""

    pattern: re.Pattern[str]
    apply: BodyRepair
    note: Note
    must_be_unsupported: bool = True  # whether the error text must also match UNSUPPORTED
    statuses: frozenset[int] = BAD_REQUEST
    capability: tuple[str, bool] | None = None
    """The capability to remember after the repaired request succeeded, with its value."""


def repair_by(fixes: Sequence[Fix]) -> Callable[[Body, int, Any], Repair | None]:
    """Return a ``repair`` function: it applies the first fix that matches error text and body."""

    def repair(body: Body, status: int, refusal: Any) -> Repair | None:
        if status not in REFUSAL_STATUSES:
            return None
        error = read_error(refusal)
        text = f"{error.code} {error.param} {error.message}"
        for fix in fixes:
            if status not in fix.statuses or not fix.pattern.search(text):
                continue
            if fix.must_be_unsupported and not UNSUPPORTED.search(text):
                continue
            repaired = fix.apply(body, text)
            if repaired is not None:
                return Repair(body=repaired, note=fix.note, capability=fix.capability)
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
    """Lower the output limit to what the upstream's error text leaves room for."""
    sent = {n: body[n] for n in OUTPUT_LIMITS & body.keys() if type(body[n]) is int}
    if not sent:
        return None
    limit = read_output_limit(refusal)
    room = limit or _room_for_output(body, max(sent.values()), refusal)
    too_large = [name for name, tokens in sent.items() if tokens > room]
    return body | dict.fromkeys(too_large, room) if room and too_large else None


def _room_for_output(body: Body, sent: int, refusal: str) -> int:
    """Return the output limit that fits beside the prompt; 0 if there is no room, or no count.

    Some servers do not report the length of the prompt, or only a part of it. Then the length is
    estimated; if the upstream refuses this as well, the smallest useful output is requested.
    """
    limits = read_token_limits(refusal)
    if not limits.window or not (limits.output or OUTPUT_WORD.search(refusal)):
        return 0
    if limits.output not in (0, sent):
        return 0  # an error about another limit than the one that was sent
    if limits.room:
        rooms = [limits.room if limits.room < sent else sent - SPARE_TOKENS]
    else:
        rooms = [limits.window - _estimated_prompt(body), MIN_OUTPUT_ROOM]
    largest = min(sent - 1, limits.window - limits.prompt)
    return next((room for room in rooms if MIN_OUTPUT_ROOM <= room <= largest), 0)


def _estimated_prompt(body: Body) -> int:
    text, urls = DATA_URL.subn('""', compact_json(body))
    return len(text.encode(errors="replace")) // BYTES_PER_TOKEN + urls * TOKENS_PER_DATA_URL


def _raise_output_limit(body: Body, refusal: str) -> Body | None:
    """Raise the output limit to the minimum in the upstream's error text."""
    match_ = MIN_OUTPUT.search(refusal)
    sent = body.get("max_output_tokens")
    if match_ is None or type(sent) is not int or sent >= int(match_[1]):
        return None
    return {**body, "max_output_tokens": int(match_[1])}


def _reshape(shape: Callable[[Any], Any], *names: str) -> BodyRepair:
    """Return a repair that changes the history by one of the functions of ``history_shapes``."""

    def repair(body: Body, _: str) -> Body | None:
        repaired = {name: shape(body[name]) for name in names if body.get(name)}
        changed = body | repaired
        return changed if changed != body else None

    return repair


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
    re.compile(
        r"\bmax_?(?:\w{0,12}tokens|outputtokens)|maximum tokens|output|completion|window",
        re.IGNORECASE,
    ),
    _clamp_output_limit,
    Note("max_tokens", "clamped", "more than the model's output limit: sent with that limit"),
    must_be_unsupported=False,
    statuses=frozenset({*BAD_REQUEST, 413, 500}),
)
_MAX_TOKENS: Final = Note("max_tokens", "renamed", "the upstream accepts it under its other name")

_IMAGES: Final = Fix(
    NO_IMAGES,
    _reshape(without_images, "messages", "input"),
    Note("messages", "dropped", "the model does not accept images: sent without them"),
    must_be_unsupported=False,
    statuses=REFUSAL_STATUSES,
    capability=("images", False),
)


def _template_fix(
    pattern: str, shape: Callable[[Any], Any], capability: tuple[str, bool], reason: str
) -> Fix:
    return Fix(
        re.compile(pattern, re.IGNORECASE),
        _reshape(shape, "messages"),
        Note("messages", "emulated", reason),
        must_be_unsupported=False,
        statuses=frozenset({*BAD_REQUEST, 500}),
        capability=capability,
    )


_TEMPLATES: Final = (
    _template_fix(
        r"system role (?:is )?not supported|does not support (?:the )?system",
        move_system_text,
        ("system_role", False),
        "the chat template has no system role: sent as user text",
    ),
    _template_fix(
        r"single tool[- ]calls? at once|only supports? (?:a )?single tool",
        split_calls,
        ("single_calls", True),
        "the chat template takes one call in a message: sent one after the other",
    ),
    _template_fix(
        r"roles must alternate|unexpected role|alternating roles",
        merge_turns,
        ("merge_users", True),
        "the chat template requires alternating roles: messages were merged",
    ),
    _template_fix(  # only if merging changes nothing more
        r"roles must alternate|tool role|role ['\"]?tool|only user(?:,| and) assistant",
        write_calls_as_text,
        ("tool_messages", False),
        "the chat template has no tool messages: calls and results are sent as text",
    ),
)

RESPONSES_FIXES: Final = (
    _IMAGES,
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
    Fix(
        re.compile(r"max_output_tokens"),
        _raise_output_limit,
        Note("max_tokens", "clamped", "less than the upstream's minimum: sent with that minimum"),
        must_be_unsupported=False,
    ),
    _OUTPUT_LIMIT,
)
CHAT_FIXES: Final = (
    _IMAGES,
    *_TEMPLATES,
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
