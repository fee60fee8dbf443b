"""Shorten tool names and ids of one API that the other API does not accept.

Shortening has no state, so that a name is the same in each turn: it appends a hash, since a
number would depend on the order of the tools. OpenAI accepts ``[A-Za-z0-9_-]``, at most 64
characters.
"""

import hashlib
import re
from collections.abc import Collection
from typing import Final

MAX_LENGTH: Final = 64
HASH_LENGTH: Final = 8

_is_legal: Final = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_ILLEGAL_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_-]")


def upstream_name(name: str) -> str:
    """Return the tool name for OpenAI: unchanged if valid, otherwise shortened with a hash."""
    return name if _is_legal(name) else _shorten(name)


def upstream_call_id(call_id: str) -> str:
    """Return the call id for OpenAI; a tool call and its result always get the same id."""
    return call_id if _is_legal(call_id) else _shorten(call_id)


def client_call_id(call_id: str, used_ids: Collection[str]) -> str:
    """Return a tool call id that Anthropic clients accept and that is not in ``used_ids``."""
    base = upstream_call_id(call_id) if call_id else "toolu"
    candidate, number = base, 1
    while candidate in used_ids:
        number += 1
        suffix = f"_{number}"
        candidate = base[: MAX_LENGTH - len(suffix)] + suffix
    return candidate


def message_id(upstream_id: str) -> str:
    """Return a message id in Anthropic's format, always the same for the same upstream id."""
    return "msg_" + _digest(upstream_id)[:24]


def _shorten(text: str) -> str:
    prefix = _ILLEGAL_CHARACTER.sub("_", text)[: MAX_LENGTH - HASH_LENGTH - 1]
    return f"{prefix}_{_digest(text)[:HASH_LENGTH]}"


def _digest(text: str) -> str:
    # surrogatepass, because JSON may contain an unpaired surrogate, which UTF-8 cannot encode.
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
