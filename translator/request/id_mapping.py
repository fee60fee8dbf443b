"""Convert tool names and ids between the two APIs, without state.

OpenAI accepts ``[A-Za-z0-9_-]`` in names, at most 64 characters. A shortened name ends with a hash,
so that it is the same in each turn; a number would depend on the order of the tools.

A call id must go back to the server as the server made it: some models continue a count in their
ids (Kimi: ``functions.Bash:0``), and some proxies store a thought signature in them. So an id that
clients may not accept is encoded into a valid one. It may also carry fields of the call. What is
too long for an id, or arrives after the id was sent, goes into the record of the session
(``TranslationTarget.recorded_calls``).
"""

import base64
import binascii
import hashlib
import json
import re
import zlib
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from translator.dialect import TranslationTarget, UpstreamCall

MAX_TRIED_NUMBERS: Final = 16
MAX_LENGTH: Final = 64
HASH_LENGTH: Final = 8
ENCODED: Final = "brgid_"
"""The start of an encoded id: then a hash of upstream and model, ``_`` and the encoded content."""
MAX_ENCODED: Final = 16_384
"""Maximum characters of an encoded id, since it is stored and sent with each later request."""
MAX_DECODED: Final = 4 * MAX_ENCODED

_is_legal: Final = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_ILLEGAL_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_-]")


def upstream_name(name: str) -> str:
    """Return the tool name for OpenAI: unchanged if valid, otherwise shortened with a hash."""
    return name if _is_legal(name) else _shorten(name)


def upstream_call_id(call_id: str, target: TranslationTarget) -> str:
    """Return the call id for the upstream; a tool call and its result always get the same id.

    The upstream and model that made an id get it back unchanged, any other one gets a valid id.
    """
    if target.recorded_calls and (recorded := _recorded(call_id, target)) and recorded.id:
        return recorded.id
    if not call_id.startswith(ENCODED):
        return call_id if _is_legal(call_id) else _shorten(call_id)
    original, _ = _decode(call_id)
    if original and _origin(target) == call_id[len(ENCODED) : len(ENCODED) + HASH_LENGTH]:
        return original
    return _shorten(original or call_id)


def carried_fields(call_id: str, target: TranslationTarget) -> dict[str, Any]:
    """Return the fields of a call that its id, or the record, has for this upstream and model."""
    if target.recorded_calls and (recorded := _recorded(call_id, target)):
        return dict(recorded.fields)
    start = f"{ENCODED}{_origin(target)}_"
    return _decode(call_id)[1] if call_id.startswith(start) else {}


class ClientCallId(NamedTuple):
    """The id of a tool call for the client."""

    id: str
    lost: UpstreamCall | None = None
    """What must go back with the call, but is not in the id; None: nothing is missing."""


def client_call_id(
    call_id: str,
    used_ids: Collection[str],
    target: TranslationTarget,
    fields: dict[str, Any] | None = None,
) -> ClientCallId:
    """Return a tool call id that Anthropic clients accept and that is not in ``used_ids``.

    ``fields``: fields of the call that must go back with it. A repeated or very long id is
    shortened, and carries no fields. A repeated id must not go back as it was, since two calls
    with one id could not be told apart.
    """
    lost_id = ""
    if fields or (call_id and not _is_legal(call_id)):
        encoded = _encode(call_id, fields or {}, target)
        if encoded not in used_ids:
            if len(encoded) <= MAX_ENCODED:
                return ClientCallId(encoded)
            lost_id = call_id
    base = (call_id if _is_legal(call_id) else _shorten(call_id)) if call_id else "toolu"
    candidate, number = base, 1
    while candidate in used_ids:
        # After a few repeats, go on where no number is used yet: an upstream may repeat one id.
        number = number + 1 if number < MAX_TRIED_NUMBERS else max(number, len(used_ids)) + 1
        suffix = f"_{number}"
        candidate = base[: MAX_LENGTH - len(suffix)] + suffix
        lost_id = ""
    lost = UpstreamCall(lost_id, fields or {}) if fields or lost_id else None
    return ClientCallId(candidate, lost)


def record_name(call_id: str) -> str:
    """Return the name of a call in the record of its session; ``call_id`` is the client's."""
    return call_id if len(call_id) <= MAX_LENGTH else _digest(call_id)


def _recorded(call_id: str, target: TranslationTarget) -> UpstreamCall | None:
    return (target.recorded_calls or {}).get(record_name(call_id))


def _encode(call_id: str, fields: dict[str, Any], target: TranslationTarget) -> str:
    content = json.dumps([call_id, fields] if fields else [call_id], separators=(",", ":"))
    packed = content.encode()
    if len(packed) > MAX_LENGTH:
        packed = zlib.compress(packed, 9)
    encoded = base64.urlsafe_b64encode(packed).rstrip(b"=").decode()
    return f"{ENCODED}{_origin(target)}_{encoded}"


def _decode(call_id: str) -> tuple[str, dict[str, Any]]:
    """Return the original id and the fields of an encoded id; "" and {} if it is not valid."""
    text = call_id[len(ENCODED) + HASH_LENGTH + 1 : MAX_ENCODED]
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        if not packed.startswith(b"["):
            packed = zlib.decompressobj().decompress(packed, MAX_DECODED)
        content = json.loads(packed)
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return "", {}
    match content:
        case [str(original)]:
            return original, {}
        case [str(original), dict(fields)]:
            return original, fields
    return "", {}


def _origin(target: TranslationTarget) -> str:
    return _digest(f"{target.upstream}\n{target.model}")[:HASH_LENGTH]


def _shorten(text: str) -> str:
    prefix = _ILLEGAL_CHARACTER.sub("_", text)[: MAX_LENGTH - HASH_LENGTH - 1]
    return f"{prefix}_{_digest(text)[:HASH_LENGTH]}"


def _digest(text: str) -> str:
    # surrogatepass, because JSON may contain an unpaired surrogate, which UTF-8 cannot encode.
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
