"""Where secrets come from: one root key, derived keys by purpose, gateway keys, references.

Nothing is signed with the root itself: each purpose gets its own key (HKDF, RFC 5869), so what one
purpose signed never verifies in another.
"""

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from translator.carrier import CarrierKeys

KEY_MARK: Final = "sk-br-"
PREFIX_LENGTH: Final = len(KEY_MARK) + 8
BLOCK_BYTES: Final = 64  # of SHA-256
INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


class ConfigError(Exception):
    """The configuration is wrong; the message names what to mend, never a secret's value."""


class Secret(str):
    """A secret text. It can be sent, but a log line, a traceback or a dataclass shows ``***``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def has_root() -> bool:
    """Whether there is a secret key already; Django raises rather than hand out an empty one."""
    try:
        return bool(settings.SECRET_KEY)
    except ImproperlyConfigured:
        return False


def derive(purpose: str, root: str | None = None) -> bytes:
    """The 32-byte key of one purpose: HKDF-SHA256 over the secret key (or over ``root``)."""
    return _derived(purpose, settings.SECRET_KEY if root is None else root)


@lru_cache(maxsize=64)  # every request asks: 3 µs instead of 30
def _derived(purpose: str, secret: str) -> bytes:
    pseudorandom = hmac.digest(b"messages-bridge", secret.encode(), hashlib.sha256)
    return hmac.digest(pseudorandom, purpose.encode() + b"\x01", hashlib.sha256)


def new_secret() -> Secret:
    """A new gateway key: ``sk-br-`` and 256 random bits."""
    return Secret(KEY_MARK + secrets.token_urlsafe(32))


def digest_of(secret: str) -> bytes:
    """What is stored of a gateway key. The key is random, so a fast keyed hash is the right one."""
    return digest_of_bytes(secret.encode())


def digest_of_bytes(secret: bytes) -> bytes:
    inner, outer = _keyed(settings.SECRET_KEY)
    within, around = inner.copy(), outer.copy()
    within.update(secret)
    around.update(within.digest())
    return around.digest()


@lru_cache(maxsize=64)
def _keyed(root: str) -> "tuple[hashlib._Hash, hashlib._Hash]":
    """HMAC-SHA256's two hashes, its key in them already (RFC 2104, part 4).

    Each request needs a digest. It takes 0.8 µs so, and 1.0 on a busy machine, where it took 1.4
    and 5.5 from a prepared ``hmac.HMAC``, and takes 2.1 and 6.7 by ``hmac.digest``.
    """
    key = derive("gateway key digest", root).ljust(BLOCK_BYTES, b"\0")
    return hashlib.sha256(key.translate(INNER)), hashlib.sha256(key.translate(OUTER))


def prefix_of(secret: str) -> str:
    """What may be shown of a gateway key: ``sk-br-AbCd1234``, or a few letters of a foreign one."""
    return secret[:PREFIX_LENGTH] if secret.startswith(KEY_MARK) else secret[: len(secret) // 8][:8]


def carrier_keys() -> CarrierKeys:
    """The ring that signs reasoning: the secret key signs, its predecessors still verify."""
    ring = {}
    for root in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        key = derive("reasoning carrier", root)
        ring[hashlib.sha256(key).hexdigest()[:8]] = key
    return CarrierKeys(current=next(iter(ring)), keys=ring)


def new_root() -> str:
    """A new secret key for an installation: 384 random bits as 64 characters."""
    return base64.urlsafe_b64encode(secrets.token_bytes(48)).decode()


def resolve(reference: Mapping[str, str]) -> Secret:
    """The secret behind ``{"env": NAME}`` or ``{"file": PATH}``; ``{}`` is "no secret": empty.

    Raises ConfigError naming the variable or the file, never what is in it.
    """
    if not reference:
        return Secret("")
    match dict(reference):
        case {"env": str(name)} if len(reference) == 1:
            value, place = os.environ.get(name, ""), f"environment variable {name}"
        case {"file": str(path)} if len(reference) == 1:
            value, place = _read(path), f"file {path}"
        case _:
            raise ConfigError('a secret is { env = "NAME" } or { file = "/path" }')
    value = value.strip()
    if not value:
        raise ConfigError(f"{place} is missing or empty")
    if not value.isascii() or not value.isprintable():
        raise ConfigError(f"{place} holds characters that no header can carry")
    return Secret(value)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"file {path} cannot be read: {reason}") from None
