"""Names and ids that both sides accept: shortened by a rule, without state, the same each turn.

A suffix counter would depend on the order of the tools and change names between turns; a hash
does not. Source: mapping of tool names; OpenAI takes ``[A-Za-z0-9_-]``, at most 64 characters.
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
    """The tool name that OpenAI is told: the client's where legal, else shortened with a hash."""
    return name if _is_legal(name) else _bent(name)


def upstream_call_id(call_id: str) -> str:
    """The call id that OpenAI is told; call and output are clamped alike, so pairs stay pairs."""
    return call_id if _is_legal(call_id) else _bent(call_id)


def client_call_id(call_id: str, taken: Collection[str]) -> str:
    """An id that Anthropic clients accept, and that is not among those already given out."""
    wanted = upstream_call_id(call_id) if call_id else "toolu"
    candidate, number = wanted, 1
    while candidate in taken:
        number += 1
        suffix = f"_{number}"
        candidate = wanted[: MAX_LENGTH - len(suffix)] + suffix
    return candidate


def message_id(upstream_id: str) -> str:
    """An Anthropic-looking message id, always the same for one upstream id."""
    return "msg_" + _digest(upstream_id)[:24]


def _bent(text: str) -> str:
    kept = _ILLEGAL_CHARACTER.sub("_", text)[: MAX_LENGTH - HASH_LENGTH - 1]
    return f"{kept}_{_digest(text)[:HASH_LENGTH]}"


def _digest(text: str) -> str:
    # Half a surrogate pair can come out of JSON and has no UTF-8.
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
