"""Reasoning carriers: an upstream's reasoning item, signed, in a thinking block's signature.

Clients keep ``signature`` verbatim and send it back; only the upstream and model that made the
reasoning get it again. The HMAC tells ours from foreign or forged ones without a lookup.

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
class CarrierKeys:
    """A ring of signing keys: ``current`` signs, every key in ``keys`` verifies."""

    current: str
    keys: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """What must survive of one reasoning item; its readable text travels beside, in the block."""

    upstream: str
    model: str
    api: str  # "responses" | "chat"
    item_id: str = ""
    encrypted_content: str | None = None
    part_lengths: tuple[int, ...] = ()
    """Characters of each part of the text (summary or content), to cut it as it was."""
    text_is: Literal["summary", "content"] = "summary"
    phase: str | None = None
    details: Any = None  # chat: OpenRouter's reasoning_details, verbatim


WIRE_NAMES: Final = {
    "upstream": "u",
    "model": "m",
    "api": "a",
    "item_id": "i",
    "encrypted_content": "e",
    "part_lengths": "n",
    "text_is": "t",
    "phase": "p",
    "details": "d",
}
"""Field -> its name in the payload. Signatures are resent with every turn, so they stay short.

What older carriers hold beside these (``r``, a vendor's name for the field) is passed over."""


def mint(reasoning: Reasoning, keys: CarrierKeys) -> str:
    """The signature that carries this reasoning. Equal reasoning gives an equal signature."""
    payload: dict[str, Any] = {"v": VERSION}
    for name, short in WIRE_NAMES.items():
        value = getattr(reasoning, name)
        if value not in (None, "", ()):
            payload[short] = value
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    packed = _encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 9))
    sealed = f"{PREFIX}{keys.current}.{packed}"
    return f"{sealed}.{_mac(sealed, keys.keys[keys.current])}"


def unseal(signature: str, keys: CarrierKeys) -> Reasoning | None:
    """The reasoning inside a signature of ours; None when foreign, forged or truncated."""
    sealed, _, mac = signature.rpartition(".")
    kid, _, packed = sealed.removeprefix(PREFIX).partition(".")
    key = keys.keys.get(kid)
    if not is_carrier(signature) or key is None:
        return None
    expected = _mac(sealed, key)
    # Nothing is unpacked before the seal was checked: a forger cannot even send a zip bomb.
    if not hmac.compare_digest(expected.encode(), mac.encode("utf-8", "replace")):
        return None
    try:
        payload = json.loads(zlib.decompress(_decode(packed)).decode("utf-8", "surrogatepass"))
    except (ValueError, zlib.error, binascii.Error):
        return None  # signed with our key by something that is not this module
    return _reasoning_of(payload)


def is_carrier(signature: str) -> bool:
    """Whether a signature claims to be ours (it may still be forged)."""
    return signature.startswith(PREFIX)


def _reasoning_of(payload: Any) -> Reasoning | None:
    """The reasoning in a payload of this version; None for a later one."""
    if not isinstance(payload, dict) or payload.get("v") != VERSION:
        return None
    values = {name: payload[short] for name, short in WIRE_NAMES.items() if short in payload}
    values["part_lengths"] = tuple(values.get("part_lengths", ()))
    absent: dict[str, Any] = {"upstream": "", "model": "", "api": ""}
    return Reasoning(**(absent | values))


def _mac(sealed: str, key: bytes) -> str:
    digest = hmac.new(key, sealed.encode("utf-8", "replace"), hashlib.sha256).digest()
    return _encode(digest[:MAC_BYTES])


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
