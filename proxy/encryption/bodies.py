"""Encrypt the stored texts of conversations, with a key that can be destroyed.

The cipher is AES-256-GCM with a random nonce. BRIDGE_BODY_KEYS has the keys: the first one
encrypts, all of them decrypt. Without a key, nothing is encrypted, and data that was stored without
a key can always be read. The associated data is the address of the data, so no ciphertext can be
moved to another place.

Format: ``ENC1``, the key's id (4 bytes), the nonce (12), the ciphertext with its tag. In text
columns: ``ENC1.``, the id in hexadecimal digits, ``.``, and the rest in base64url.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from django.conf import settings

from proxy.secrets import derive

MARK: Final = b"ENC1"
TEXT_MARK: Final = "ENC1."
ID_LENGTH: Final = 4
NONCE_LENGTH: Final = 12
HEAD_LENGTH: Final = len(MARK) + ID_LENGTH
MIN_LENGTH: Final = HEAD_LENGTH + NONCE_LENGTH + 16  # with the tag of an empty text
SALT_LENGTH: Final = 16
TEXT_ADDRESS: Final = b"text"
"""The address of all text columns. The hash chain covers the ciphertext together with its row, so a
ciphertext that is moved to another row is detected there."""


class MissingBodyKey(ValueError):
    """The data is encrypted with a key that this gateway does not have."""

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        super().__init__(f"encrypted with key {key_id}, which this gateway does not have")


class DamagedBody(ValueError):
    """The encrypted data was changed, or it was moved to another address."""

    def __init__(self) -> None:
        super().__init__("the encrypted data was changed")


class BodyKey(NamedTuple):
    id: bytes
    cipher: Any
    digest_key: bytes


class SealedText(str):
    """A decrypted text that also has its encrypted form, which the database and the digest need.

    Without the key, it is the message of MissingBodyKey.
    """

    __slots__ = ("stored",)

    stored: str


def has_key() -> bool:
    """Return whether new data is encrypted."""
    return bool(settings.BODY_KEYS)


def key_ids() -> list[str]:
    """Return the ids of the configured keys as hexadecimal digits; the first key encrypts."""
    return [key.id.hex() for key in _keys()]


def current_head() -> bytes:
    """Return the first bytes of everything that the current key encrypts. A key is configured."""
    return MARK + _keys()[0].id


def current_text_head() -> str:
    """Return the first characters of all texts that the current key encrypts."""
    return f"{TEXT_MARK}{_keys()[0].id.hex()}."


def encrypt(data: bytes, address: bytes) -> bytes:
    """Return the data encrypted for this address; unchanged if no key is configured."""
    if not settings.BODY_KEYS:
        return data
    key, nonce = _keys()[0], os.urandom(NONCE_LENGTH)
    return b"".join((MARK, key.id, nonce, key.cipher.encrypt(nonce, data, address)))


def decrypt(data: bytes, address: bytes) -> bytes:
    """Return the decrypted data; unchanged if it is not encrypted.

    Raises MissingBodyKey or DamagedBody.
    """
    if not data.startswith(MARK):
        return data
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - most installations never need this import

    key_id, rest = data[len(MARK) : HEAD_LENGTH], data[HEAD_LENGTH:]
    key = next((key for key in _keys() if key.id == key_id), None)
    if key is None:
        raise MissingBodyKey(key_id.hex())
    try:
        plain: bytes = key.cipher.decrypt(rest[:NONCE_LENGTH], rest[NONCE_LENGTH:], address)
    except (InvalidTag, ValueError):
        raise DamagedBody from None
    return plain


def require_decrypted(data: bytes) -> None:
    """Raise MissingBodyKey or DamagedBody if the data is encrypted."""
    if data.startswith(MARK):
        key_id = data[len(MARK) : HEAD_LENGTH].hex()
        raise DamagedBody if key_id in key_ids() else MissingBodyKey(key_id)


def encrypt_text(text: str, address: bytes = TEXT_ADDRESS) -> str:
    """Return the encrypted text as ASCII; unchanged if it is empty or no key is configured."""
    if not text or not settings.BODY_KEYS:
        return text
    data = encrypt(text.encode("utf-8", "surrogatepass"), address)
    return current_text_head() + base64.urlsafe_b64encode(data[HEAD_LENGTH:]).decode()


def decrypt_text(text: str, address: bytes = TEXT_ADDRESS) -> str:
    """Return the decrypted text; unchanged if it is not encrypted. Raises MissingBodyKey.

    Damaged data is returned unchanged, because a text may begin like an encrypted one by chance.
    """
    if not text.startswith(TEXT_MARK):
        return text
    key_id, _, rest = text[len(TEXT_MARK) :].partition(".")
    try:
        data = b"".join((MARK, bytes.fromhex(key_id), base64.urlsafe_b64decode(rest)))
        if len(data) < MIN_LENGTH or len(key_id) != 2 * ID_LENGTH:
            return text
        return decrypt(data, address).decode("utf-8", "surrogatepass")
    except MissingBodyKey:
        raise
    except (binascii.Error, ValueError):
        return text


def seal(text: str) -> str:
    """Return the text with its encrypted form; unchanged if it is not to be encrypted."""
    stored = encrypt_text(text)
    return text if stored is text else _sealed(text, stored)


def unseal(stored: str) -> str:
    """Return the text of a column, with its stored form if it is encrypted."""
    if not stored.startswith(TEXT_MARK):
        return stored
    try:
        text = decrypt_text(stored)
    except MissingBodyKey as missing:
        text = str(missing)
    return stored if text is stored else _sealed(text, stored)


def _sealed(text: str, stored: str) -> SealedText:
    sealed = SealedText(text)
    sealed.stored = stored
    return sealed


def stored_text(text: str) -> str:
    """Return the form of a text that the database stores and the hash chain digests."""
    return text.stored if isinstance(text, SealedText) else text


def keyed_digest(digest: bytes) -> bytes:
    """Return the stored form of a SHA-256 digest of content, or of its first 16 bytes.

    With a body key it is an HMAC: without the key, a guess of a stored text cannot be confirmed.
    """
    return _hmac(_keys()[0], digest) if settings.BODY_KEYS else digest


def known_digests(digest: bytes) -> Sequence[bytes]:
    """Return all stored forms that this digest may have: those of every key, and the digest."""
    return [*(_hmac(key, digest) for key in _keys()), digest]


def new_salt() -> bytes:
    """Return random bytes that precede a transcript in its digest; empty without a key.

    They are stored encrypted, so the digest in the hash chain does not confirm a guess. Unlike an
    HMAC, the digest stays valid when the transcript is encrypted with another key.
    """
    return os.urandom(SALT_LENGTH) if settings.BODY_KEYS else b""


def _hmac(key: BodyKey, digest: bytes) -> bytes:
    return hmac.digest(key.digest_key, digest, hashlib.sha256)[: len(digest)]


def _keys() -> Sequence[BodyKey]:
    return _keys_of(tuple(settings.BODY_KEYS))


@lru_cache(maxsize=8)
def _keys_of(texts: Sequence[str]) -> Sequence[BodyKey]:
    if not texts:
        return ()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

    return tuple(
        BodyKey(
            derive("id of a body key", text)[:ID_LENGTH],
            AESGCM(derive("encryption of bodies", text)),
            derive("digests of bodies", text),
        )
        for text in texts
    )
