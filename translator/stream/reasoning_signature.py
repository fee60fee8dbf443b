"""Store an upstream's reasoning item, signed, in the ``signature`` of a thinking block.

Clients store ``signature`` unchanged and send it back; only the upstream and model that produced
the reasoning receive it again. The HMAC detects foreign and forged signatures without a lookup.
The format is:

``brg1.<kid>.<base64url(zlib(json))>.<base64url(hmac-sha256, first 16 bytes)>``
"""

import base64
import binascii
import hashlib
import hmac
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

PREFIX: Final = "brg1."
VERSION: Final = 1
MAC_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """Keys for signatures: ``current`` signs, every key in ``keys`` verifies."""

    current: str
    keys: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedReasoning:
    """The data of one reasoning item; its readable text is in the thinking block itself."""

    upstream: str
    model: str
    api: str  # "responses" | "chat"
    item_id: str = ""
    encrypted_content: str | None = None
    part_lengths: tuple[int, ...] = ()
    """Characters of each part of the reasoning text (summary or content), to split the text
    again."""
    text_kind: Literal["summary", "content"] = "summary"
    phase: str | None = None
    details: Any = None  # Chat Completions only: OpenRouter's reasoning_details, unchanged


PAYLOAD_NAMES: Final = {
    "upstream": "u",
    "model": "m",
    "api": "a",
    "item_id": "i",
    "encrypted_content": "e",
    "part_lengths": "n",
    "text_kind": "t",
    "phase": "p",
    "details": "d",
}
"""Field -> its name in the JSON of a signature, short because every turn sends the signatures
again.

Older signatures have further names (``r``, a vendor's field name), which are ignored.
"""


def sign(reasoning: SignedReasoning, keys: SigningKeys) -> str:
    """Return a signature that contains ``reasoning``; equal reasoning gives the same one."""
    payload: dict[str, Any] = {"v": VERSION}
    for name, short in PAYLOAD_NAMES.items():
        value = getattr(reasoning, name)
        if value not in (None, "", ()):
            payload[short] = value
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    packed = _encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 9))
    signed_text = f"{PREFIX}{keys.current}.{packed}"
    return f"{signed_text}.{mac_of(signed_text, keys.keys[keys.current])}"


def verify(signature: str, keys: SigningKeys) -> SignedReasoning | None:
    """Return the reasoning in a signature; None if it is foreign, forged or truncated."""
    signed_text, _, mac = signature.rpartition(".")
    kid, _, packed = signed_text.removeprefix(PREFIX).partition(".")
    key = keys.keys.get(kid)
    if not is_own_signature(signature) or key is None:
        return None
    expected = mac_of(signed_text, key)
    # The HMAC is verified before decompression, so that a forged signature cannot be a zip bomb.
    if not hmac.compare_digest(expected.encode(), mac.encode("utf-8", "replace")):
        return None
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        payload = json.loads(zlib.decompress(raw).decode("utf-8", "surrogatepass"))
    except (ValueError, zlib.error, binascii.Error):
        return None  # the signature was made with a known key, but not by this module
    # A later version of this package may have written it.
    if not isinstance(payload, dict) or payload.get("v") != VERSION:
        return None
    values = {name: payload[short] for name, short in PAYLOAD_NAMES.items() if short in payload}
    values["part_lengths"] = tuple(values.get("part_lengths", ()))
    required: dict[str, Any] = {"upstream": "", "model": "", "api": ""}
    return SignedReasoning(**(required | values))


def is_own_signature(signature: str) -> bool:
    """Return whether a signature has this gateway's prefix; it may still be forged."""
    return signature.startswith(PREFIX)


def mac_of(signed_text: str, key: bytes) -> str:
    """Return the truncated HMAC-SHA-256 of the text, encoded as the signature is."""
    digest = hmac.new(key, signed_text.encode("utf-8", "replace"), hashlib.sha256).digest()
    return _encode(digest[:MAC_BYTES])


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
