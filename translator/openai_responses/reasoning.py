"""Convert signed thinking blocks back to reasoning items; sign and restore compaction items."""

from typing import Any

from translator.dialect import TranslationTarget
from translator.stream import reasoning_signature

from .types import OutputItem

TEXT_TYPES = {"summary": "summary_text", "content": "reasoning_text"}
COMPACTION = "responses/compaction"
"""The ``api`` value of a signature that contains a compaction item instead of reasoning."""

RECORDED_REASONING = "reasoning"
"""The field of a recorded call with the hidden reasoning before it: pairs of the number of content
blocks before an item in its response, and the item."""

SEPARATORS = {"summary": "\n\n", "content": ""}
"""Separators between the parts of a reasoning text when the parts are shown as one text."""


def restore_reasoning(block: dict[str, Any], target: TranslationTarget) -> dict[str, Any] | str:
    """Return the reasoning item of a thinking block, or the reason why none can be sent.

    Only the upstream and model that produced the reasoning receive it; others would return 400.
    Source: docs/mapping.md.
    """
    signature = block.get("signature") or block.get("data") or ""
    if target.signing_keys is None or not reasoning_signature.is_own_signature(signature):
        return "reasoning without this gateway's signature is not sent"
    if reasoning_signature.verify(signature, target.signing_keys) is None:
        return "this reasoning signature is forged or truncated"
    signed = target.verify(signature, "responses")
    if signed is None:
        return "reasoning of another upstream or model is not sent"
    if not signed.encrypted_content:
        return "reasoning without encrypted content is not sent"
    parts = _split_text(block.get("thinking") or "", signed)
    item: dict[str, Any] = {
        "type": "reasoning",
        "id": signed.item_id,
        "summary": parts if signed.text_kind == "summary" else [],
        "encrypted_content": signed.encrypted_content,
    }
    if signed.text_kind == "content" and parts:
        item["content"] = parts
    return item


def compaction_block(item: OutputItem, target: TranslationTarget) -> dict[str, Any] | None:
    """Return a compaction item as a signed Anthropic block; None without signing keys."""
    encrypted = item.get("encrypted_content")
    if target.signing_keys is None or not isinstance(encrypted, str):
        return None
    item_id = str(item.get("id") or "")
    signature = target.sign(COMPACTION, item_id=item_id, encrypted_content=encrypted)
    return {"type": "compaction", "content": None, "encrypted_content": signature}


def restore_compaction(block: dict[str, Any], target: TranslationTarget) -> dict[str, Any] | None:
    """Return a block's compaction item; None if another upstream or model produced it."""
    signed = target.verify(block.get("encrypted_content") or "", COMPACTION)
    if signed is None:
        return None
    id_field = {"id": signed.item_id} if signed.item_id else {}
    return {"type": "compaction", **id_field, "encrypted_content": signed.encrypted_content}


def _split_text(text: str, signed: reasoning_signature.SignedReasoning) -> list[dict[str, Any]]:
    """Split a thinking text into its original parts; return [] if the client removed the text."""
    separator = SEPARATORS[signed.text_kind]
    total = sum(signed.part_lengths) + len(separator) * (len(signed.part_lengths) - 1)
    lengths = signed.part_lengths if total == len(text) else (len(text),)
    texts, start = [], 0
    for length in lengths:
        texts.append(text[start : start + length])
        start += length + len(separator)
    return [{"type": TEXT_TYPES[signed.text_kind], "text": piece} for piece in texts if piece]
