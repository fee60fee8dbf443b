"""Encrypt the upstream secrets that are stored in the database.

The cipher is AES-256-GCM. Its key is derived from the secret key of the installation. The
upstream's base URL is the associated data, so the secret of one upstream cannot be decrypted for
another. Format: ``v1.``, then nonce and ciphertext in base64url.
"""

import base64
import binascii
import os
from typing import Final

from django.conf import settings

from proxy.secrets import ConfigError, Secret, derive

PURPOSE: Final = "sealed upstream secret"
MARK: Final = "v1."
NONCE_LENGTH: Final = 12


def encrypt_secret(secret: str, base_url: str) -> str:
    """Return the encrypted text. Each call returns another text, because the nonce is random."""
    nonce = os.urandom(NONCE_LENGTH)
    ciphertext = _cipher(settings.SECRET_KEY).encrypt(nonce, secret.encode(), base_url.encode())
    return MARK + base64.urlsafe_b64encode(nonce + ciphertext).decode()


def decrypt_secret(text: str, base_url: str) -> Secret:
    """Return the secret.

    Raises ConfigError if it was encrypted for another URL or with an unknown secret key.
    """
    return _decrypt(text, base_url)[0]


def reencrypt_secret(text: str, base_url: str) -> str:
    """Encrypt again with the current secret key.

    Return ``text`` unchanged if it already uses that key.
    """
    secret, root = _decrypt(text, base_url)
    return text if root == settings.SECRET_KEY else encrypt_secret(secret, base_url)


def _decrypt(text: str, base_url: str) -> tuple[Secret, str]:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - most installations never need this import

    try:
        raw = base64.urlsafe_b64decode(text.removeprefix(MARK).encode())
    except (binascii.Error, ValueError):
        raw = b""
    nonce, ciphertext = raw[:NONCE_LENGTH], raw[NONCE_LENGTH:]
    for root in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        try:
            plaintext = _cipher(root).decrypt(nonce, ciphertext, base_url.encode())
        except (InvalidTag, ValueError):
            continue
        return Secret(plaintext.decode()), root
    raise ConfigError(
        "its secret cannot be read: it was entered for another base URL or under another "
        "secret key; enter it again"
    )


def _cipher(root: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - the type of the result is imported in the function
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

    return AESGCM(derive(PURPOSE, root))
