"""Reasoning in Chat Completions requests: the requested effort, and reasoning of earlier turns.

Reasoning is read under each vendor's field names; some of it must be sent back unchanged:
OpenRouter streams ``reasoning_details``, a list, in fragments and requires the whole list in later
requests.

Source: https://openrouter.ai/docs/use-cases/reasoning-tokens
"""

from collections.abc import Mapping
from typing import Any, Final

from translator.dialect import TranslationTarget
from translator.request.builder import RequestBuilder
from translator.request.reasoning_effort import EFFORT_FIELDS, THINKING_OFF
from translator.stream.reasoning_signature import SignedReasoning

REASONING_FIELDS: Final = (
    "reasoning_content",
    "reasoning",
    "reasoning_text",
    "thinking",
    "thinking_blocks",  # LiteLLM, usually together with reasoning_content
)
"""Fields with reasoning text; only the first non-empty one is read, since several repeat the
text."""

REASONING_DETAILS: Final = "reasoning_details"
"""OpenRouter's field. A tool call's id carries it if the client asked for no thinking blocks."""
HIDDEN_TEXT: Final = "hidden_reasoning"
"""The field of a recorded call with the reasoning before it, if the client asked for no thinking.
DeepSeek and Moonshot require it with the call."""

OPAQUE: Final = "reasoning_opaque"
"""Copilot's field for encrypted reasoning, which later requests must repeat with the text.

Source: https://github.com/sst/opencode, its provider for Copilot
"""

STREAMED_FIELDS: Final = ("text", "summary", "data")
"""Fields whose fragments are concatenated; for other fields, the last non-null value is used."""

TEXT_FIELDS: Final = ("text", "thinking", "content", "summary")
"""Fields that may contain the text of a reasoning part."""


def read_details(delta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reasoning fragments in one delta, in whichever form the server sends them.

    Encrypted reasoning is included, as a fragment with its own type.
    """
    entries = delta.get("reasoning_details")
    details = (
        [part for part in entries if isinstance(part, dict)] if isinstance(entries, list) else []
    )
    if OPAQUE in delta and isinstance(delta[OPAQUE], str) and delta[OPAQUE]:
        details.append({"type": OPAQUE, "data": delta[OPAQUE]})
    return details


def split_opaque(details: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the fragments without encrypted reasoning, and the last encrypted reasoning."""
    opaque = [part.get("data") for part in details if part.get("type") == OPAQUE]
    readable = [part for part in details if part.get("type") != OPAQUE]
    return readable, str(opaque[-1]) if opaque else ""


def reasoning_text(value: Any) -> str:
    """Return the text of a reasoning value of any structure.

    Databricks nests the text in ``summary``, Mistral in ``thinking``, others in ``content`` or
    ``text``.
    """
    if type(value) is str:
        return value
    if type(value) is list:
        return "".join(map(reasoning_text, value))
    if type(value) is dict:
        for name in TEXT_FIELDS:
            if name in value and (text := reasoning_text(value[name])):
                return text
    return ""


def details_text(details: list[dict[str, Any]]) -> str:
    """Return the readable text of the fragments; encrypted fragments have no text."""
    return "".join(
        text
        for part in details
        for text in (part.get("text"), part.get("summary"))
        if isinstance(text, str)
    )


def merge_details(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join consecutive fragments with the same type and index, which belong to one entry."""
    entries: list[dict[str, Any]] = []
    for part in details:
        last = entries[-1] if entries else None
        if last is None or _entry_key(last) != _entry_key(part) or part.get("index") is None:
            entries.append(dict(part))
            continue
        for name, value in part.items():
            if (
                name in STREAMED_FIELDS
                and isinstance(value, str)
                and isinstance(last.get(name), str)
            ):
                last[name] += value
            elif value is not None:
                last[name] = value
    return entries


def _entry_key(part: dict[str, Any]) -> tuple[Any, Any]:
    return part.get("type"), part.get("index")


CARRIED_FIELDS: Final = ("extra_content", "provider_specific_fields", "thought_signature")
"""Fields of a tool call that must go back with it. They contain the thought signature of Gemini,
which is in ``extra_content`` in its own API, and in the others behind LiteLLM and other proxies."""

CARRIED_FUNCTION_FIELDS: Final = ("provider_specific_fields", "thought_signature")
"""The same, for fields inside of ``function``."""


def reasoning_fields(builder: RequestBuilder) -> dict[str, Any]:
    """Return ``reasoning_effort`` and the vendor's reasoning switch (docs/mapping.md)."""
    if builder.effort is None and EFFORT_FIELDS.isdisjoint(builder.request):
        return {}
    kind = (builder.request.get("thinking") or {}).get("type")
    off = kind in THINKING_OFF
    fields: dict[str, Any] = {}
    if kind is not None:
        fields = _thinking_switch(builder.profile.thinking_switch, off=off)
    if fields and off:
        return fields  # DeepSeek rejects "disabled" together with an effort
    effort = builder.choose_effort()
    if effort is not None:
        fields["reasoning_effort"] = effort
    if kind == "enabled" and builder.profile.budget_field:
        fields[builder.profile.budget_field] = builder.request["thinking"]["budget_tokens"]
    return fields


def _thinking_switch(name: str, *, off: bool) -> dict[str, Any]:
    if name == "thinking":
        return {"thinking": {"type": "disabled" if off else "enabled"}}
    return {"chat_template_kwargs": {"enable_thinking": not off}} if name else {}


def restore_reasoning(
    thinking_blocks: list[dict[str, Any]],
    carried_details: list[dict[str, Any]],
    hidden_texts: list[str],
    path: str,
    builder: RequestBuilder,
    *,
    with_tools: bool,
) -> dict[str, Any]:
    """Return the reasoning field of an assistant message, with reasoning of this upstream only.

    ``carried_details`` is the reasoning in the ids of the message's tool calls, ``hidden_texts``
    that in their records.
    """
    field, target = builder.profile.reasoning_field, builder.target
    signed_items = [
        target.verify(block.get("signature") or block.get("data") or "", "chat")
        for block in thinking_blocks
    ]
    signed_details = [
        entry
        for signed in signed_items
        for entry in (
            signed.details if signed is not None and isinstance(signed.details, list) else []
        )
    ]
    details, opaque = split_opaque(signed_details or carried_details)
    if not (field or opaque):
        if thinking_blocks:
            builder.add_note(path, "ignored", "this upstream does not accept earlier reasoning")
        return {}
    own_texts = [
        _text(block, signed, target)
        for block, signed in zip(thinking_blocks, signed_items, strict=True)
    ]
    if target.signing_keys is not None and None in signed_items:
        builder.add_note(path, "ignored", "reasoning of another upstream or model is not sent")
    texts = list(filter(None, own_texts)) or hidden_texts
    if opaque:
        text_field = {"reasoning_text": "\n\n".join(texts)} if texts else {}
        return {**text_field, OPAQUE: opaque}
    if field == "reasoning_details" and details:
        return {field: details}
    if texts:
        return {"reasoning" if field == "reasoning_details" else field: "\n\n".join(texts)}
    if with_tools and builder.profile.reasoning_required_with_tools:
        builder.add_note(
            path, "emulated", "missing reasoning is sent as an empty string, because it is required"
        )
        return {field: ""}
    return {}


def call_fields(piece: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a streamed tool call that must go back with it."""
    fields = {name: piece[name] for name in CARRIED_FIELDS if piece.get(name)}
    function = piece.get("function")
    if isinstance(function, dict):
        inner = {n: function[n] for n in CARRIED_FUNCTION_FIELDS if function.get(n)}
        if inner:
            fields["function"] = inner
    return fields


def _text(
    block: dict[str, Any],
    signed: SignedReasoning | None,
    target: TranslationTarget,
) -> str:
    """Return a thinking block's text, if this upstream produced the block; "" otherwise."""
    text: str = block.get("thinking") or ""
    if target.signing_keys is None:
        # Without signing keys the gateway signs nothing, so only an unsigned block can be from this
        # upstream.
        return "" if block.get("signature") or block.get("data") else text
    if signed is None:
        return ""
    return text or (signed.details.get("text", "") if isinstance(signed.details, dict) else "")
