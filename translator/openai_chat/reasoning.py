"""Reasoning on the way up: how much is asked for, and what goes back of earlier turns."""

from typing import Any, Final

from translator import carrier
from translator.dialect import Target
from translator.draft import Draft
from translator.names import upstream_call_id
from translator.thinking import ASKED_BY, OFF, effort_of

from .details import OPAQUE, opaque_in

EXTRA: Final = "chat/call"
"""What a carrier says that it holds, where that is no reasoning."""


def reasoning_fields(draft: Draft) -> dict[str, Any]:
    """``reasoning_effort`` and the vendor's own switch (mapping.md 1.9)."""
    if draft.effort is None and ASKED_BY.isdisjoint(draft.request):
        return {}
    kind = (draft.request.get("thinking") or {}).get("type")
    off = kind in OFF
    fields: dict[str, Any] = {}
    if kind is not None:
        fields = _switch(draft.profile.thinking_switch, off=off)
    if fields and off:
        return fields  # DeepSeek refuses "disabled" together with an effort
    effort, notes = effort_of(draft.request, draft.profile, draft.effort)
    for note in notes:
        draft.note(note.path, note.fate, note.reason)
    if effort is not None:
        fields["reasoning_effort"] = effort
    return fields


def _switch(name: str, *, off: bool) -> dict[str, Any]:
    if name == "thinking":
        return {"thinking": {"type": "disabled" if off else "enabled"}}
    return {"chat_template_kwargs": {"enable_thinking": not off}} if name else {}


def restored_reasoning(
    thoughts: list[dict[str, Any]], path: str, draft: Draft, *, with_tools: bool
) -> dict[str, Any]:
    """The vendor's reasoning field of one assistant message; only what this upstream made."""
    field, target = draft.profile.reasoning_field, draft.target
    kept = [_unsealed(block, target) for block in thoughts]
    details, opaque = opaque_in([entry for each in kept for entry in _details(each)])
    if not (field or opaque):
        if thoughts:
            draft.note(path, "ignored", "this upstream takes no earlier reasoning")
        return {}
    own = [_text(block, each, target) for block, each in zip(thoughts, kept, strict=True)]
    if target.carrier_keys is not None and None in kept:
        draft.note(path, "ignored", "reasoning of another upstream or model stays with its maker")
    texts = list(filter(None, own))
    if opaque:
        shown = {"reasoning_text": "\n\n".join(texts)} if texts else {}
        return {**shown, OPAQUE: opaque}
    if field == "reasoning_details" and details:
        return {field: details}
    if texts:
        return {"reasoning" if field == "reasoning_details" else field: "\n\n".join(texts)}
    if with_tools and draft.profile.reasoning_required_with_tools:
        draft.note(path, "emulated", "reasoning that is gone is sent as empty: it is required")
        return {field: ""}
    return {}


def sealed_extra(id_: str, extra: Any, target: Target, keys: carrier.CarrierKeys) -> str:
    """The carrier of what belongs to one tool call (``extra_content``), under the client's id."""
    kept = carrier.Reasoning(
        upstream=target.upstream, model=target.model, api=EXTRA, item_id=id_, details=extra
    )
    return carrier.mint(kept, keys)


def carried_extras(thoughts: list[dict[str, Any]], target: Target) -> dict[str, Any]:
    """Upstream's id of a call -> what must go back with it, where this upstream made it."""
    if target.carrier_keys is None:
        return {}
    kept = (carrier.unseal(block.get("signature") or "", target.carrier_keys) for block in thoughts)
    return {
        upstream_call_id(each.item_id): each.details
        for each in kept
        if each is not None
        and (each.api, each.upstream, each.model) == (EXTRA, target.upstream, target.model)
    }


def _unsealed(block: dict[str, Any], target: Target) -> carrier.Reasoning | None:
    """What the carrier of a reasoning block holds, if this very upstream and model made it."""
    if target.carrier_keys is None:
        return None
    signature = block.get("signature") or block.get("data") or ""
    kept = carrier.unseal(signature, target.carrier_keys)
    made_here = ("chat", target.upstream, target.model)
    if kept is None or (kept.api, kept.upstream, kept.model) != made_here:
        return None
    return kept


def _text(block: dict[str, Any], kept: carrier.Reasoning | None, target: Target) -> str:
    """The text of a reasoning block that this upstream made; "" for any other."""
    shown: str = block.get("thinking") or ""
    if target.carrier_keys is None:
        # Nobody can sign here: what no one signed can only be this upstream's own.
        return "" if block.get("signature") or block.get("data") else shown
    if kept is None:
        return ""
    return shown or (kept.details.get("text", "") if isinstance(kept.details, dict) else "")


def _details(kept: carrier.Reasoning | None) -> list[dict[str, Any]]:
    return kept.details if kept is not None and isinstance(kept.details, list) else []
