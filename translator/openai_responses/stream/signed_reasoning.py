"""Sign the reasoning items of a response, for the signatures of thinking blocks."""

from translator.dialect import TranslationTarget
from translator.openai_responses.types import OutputItem
from translator.stream import reasoning_signature

from .output_items import ItemState


def sign_reasoning(item: ItemState, body: OutputItem, target: TranslationTarget) -> str:
    """Return the thinking block signature of a finished reasoning item; "" without signing keys."""
    if target.signing_keys is None:
        return ""
    encrypted = body.get("encrypted_content")
    lengths = [len(part.text) for (kind, _), part in item.parts.items() if kind == item.channel]
    reasoning = reasoning_signature.SignedReasoning(
        upstream=target.upstream,
        model=target.model,
        api="responses",
        item_id=item.id,
        encrypted_content=encrypted if isinstance(encrypted, str) else None,
        part_lengths=tuple(length for length in lengths if length),
        text_kind=item.channel or "summary",
    )
    return reasoning_signature.sign(reasoning, target.signing_keys)
