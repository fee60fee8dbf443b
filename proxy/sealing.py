"""Secrets that stand in the database: sealed by a key of the installation, for one place.

AES-256-GCM, with the place (a base URL) as associated data: a secret that was entered for one
server opens for no other. Text: ``v1.`` and the nonce and ciphertext in base64url.
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


def seal(secret: str, place: str) -> str:
    """The text that may be stored. The same secret looks different each time."""
    nonce = os.urandom(NONCE_LENGTH)
    sealed = _cipher(settings.SECRET_KEY).encrypt(nonce, secret.encode(), place.encode())
    return MARK + base64.urlsafe_b64encode(nonce + sealed).decode()


def unseal(text: str, place: str) -> Secret:
    """Raises ConfigError: it was sealed for another place, or by a secret key that is gone."""
    return _opened(text, place)[0]


def resealed(text: str, place: str) -> str:
    """The same secret under the current secret key; the same text where that is so already."""
    secret, root = _opened(text, place)
    return text if root == settings.SECRET_KEY else seal(secret, place)


def _opened(text: str, place: str) -> tuple[Secret, str]:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - most installations seal none

    try:
        raw = base64.urlsafe_b64decode(text.removeprefix(MARK).encode())
    except (binascii.Error, ValueError):
        raw = b""
    nonce, sealed = raw[:NONCE_LENGTH], raw[NONCE_LENGTH:]
    for root in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        try:
            opened = _cipher(root).decrypt(nonce, sealed, place.encode())
        except (InvalidTag, ValueError):
            continue
        return Secret(opened.decode()), root
    raise ConfigError(
        "its secret cannot be read: it was entered for another base URL or under another "
        "secret key; enter it anew"
    )


def _cipher(root: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - its type is imported below
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - as above

    return AESGCM(derive(PURPOSE, root))
