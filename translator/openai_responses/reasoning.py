"""Reasoning items: sealed into a thinking block's signature, and restored from one."""

from typing import Any

from translator import carrier
from translator.dialect import Target

from .items import Item
from .types import OutputItem, ReasoningItem, ReasoningText

TEXT_TYPES = {"summary": "summary_text", "content": "reasoning_text"}
COMPACTION = "responses/compaction"
"""What a carrier says that it holds, where that is no reasoning."""

JOINTS = {"summary": "\n\n", "content": ""}
"""What stands between the parts of a reasoning text when it is shown as one."""


def signature_of(item: Item, body: OutputItem, target: Target) -> str:
    """The carrier of a finished reasoning item; empty where nobody can sign."""
    if target.carrier_keys is None:
        return ""
    encrypted = body.get("encrypted_content")
    lengths = [len(part.said) for (kind, _), part in item.parts.items() if kind == item.channel]
    reasoning = carrier.Reasoning(
        upstream=target.upstream,
        model=target.model,
        api="responses",
        item_id=item.id,
        encrypted_content=encrypted if isinstance(encrypted, str) else None,
        part_lengths=tuple(length for length in lengths if length),
        text_is=item.channel or "summary",
    )
    return carrier.mint(reasoning, target.carrier_keys)


def restored(block: dict[str, Any], target: Target) -> ReasoningItem | str:
    """The reasoning item inside a thinking block, or why it stays behind.

    Only the upstream and model that made it get it back: another one would answer 400.
    Source: mapping.md 2.4.
    """
    signature = block.get("signature") or block.get("data") or ""
    if target.carrier_keys is None or not carrier.is_carrier(signature):
        return "reasoning without a carrier of ours stays behind"
    kept = carrier.unseal(signature, target.carrier_keys)
    if kept is None:
        return "this reasoning carrier is forged or truncated"
    made_here = (kept.api, kept.upstream, kept.model) == (
        "responses",
        target.upstream,
        target.model,
    )
    if not made_here:
        return "reasoning of another upstream or model stays with its maker"
    if not kept.encrypted_content:
        return "reasoning that was not encrypted is not known upstream any more"
    parts = _parts(block.get("thinking") or "", kept)
    item: ReasoningItem = {
        "type": "reasoning",
        "id": kept.item_id,
        "summary": parts if kept.text_is == "summary" else [],
        "encrypted_content": kept.encrypted_content,
    }
    if kept.text_is == "content" and parts:
        item["content"] = parts
    return item


def compaction_block(item: OutputItem, target: Target) -> dict[str, Any] | None:
    """A compaction item as Anthropic's block, sealed for its maker; None where nobody can sign."""
    encrypted = item.get("encrypted_content")
    if target.carrier_keys is None or not isinstance(encrypted, str):
        return None
    kept = carrier.Reasoning(
        upstream=target.upstream,
        model=target.model,
        api=COMPACTION,
        item_id=str(item.get("id") or ""),
        encrypted_content=encrypted,
    )
    sealed = carrier.mint(kept, target.carrier_keys)
    return {"type": "compaction", "content": None, "encrypted_content": sealed}


def restored_compaction(block: dict[str, Any], target: Target) -> dict[str, Any] | None:
    """The compaction item inside a block, where this upstream and model made it."""
    if target.carrier_keys is None:
        return None
    kept = carrier.unseal(block.get("encrypted_content") or "", target.carrier_keys)
    made_here = (COMPACTION, target.upstream, target.model)
    if kept is None or (kept.api, kept.upstream, kept.model) != made_here:
        return None
    named = {"id": kept.item_id} if kept.item_id else {}
    return {"type": "compaction", **named, "encrypted_content": kept.encrypted_content}


def _parts(text: str, kept: carrier.Reasoning) -> list[ReasoningText]:
    """The shown text cut into the parts it was made of; nothing when the client blanked it."""
    joint = JOINTS[kept.text_is]
    whole = sum(kept.part_lengths) + len(joint) * (len(kept.part_lengths) - 1)
    lengths = kept.part_lengths if whole == len(text) else (len(text),)
    texts, start = [], 0
    for length in lengths:
        texts.append(text[start : start + length])
        start += length + len(joint)
    kind: Any = TEXT_TYPES[kept.text_is]
    return [{"type": kind, "text": piece} for piece in texts if piece]
