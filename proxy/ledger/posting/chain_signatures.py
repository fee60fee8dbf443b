"""Sign the ends of the hash chain, with a key that is not in the database.

Whoever may write to the database can rewrite rows, links and sums, but cannot sign. The last link
of each transaction has a signature of its digest and of the first link that it covers: so a link
that nobody signed lies between two signed ranges, also when the gateway goes on after it. The key
is Ed25519 (RFC 8032), derived from SECRET_KEY, which all nodes share.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from django.conf import settings

from proxy.secrets import derive, has_root

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PURPOSE: Final = "ledger signature"


def sign(first: int, digest: bytes) -> bytes | None:
    """Return the signature of the links from ``first`` to the one with this digest.

    None: there is no SECRET_KEY yet, because no gateway has started.
    """
    return _private_key(settings.SECRET_KEY).sign(_signed(first, digest)) if has_root() else None


def is_signed(first: int, digest: bytes, signature: bytes, keys: frozenset[bytes]) -> bool:
    """Return whether one of these public keys verifies the signature."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - only verification needs it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    for key in keys:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, _signed(first, digest))
        except InvalidSignature:
            continue
        return True
    return False


def public_keys(*, current_only: bool = False) -> frozenset[bytes]:
    """Return the public keys of SECRET_KEY and of SECRET_KEY_FALLBACKS."""
    roots = [settings.SECRET_KEY] if has_root() else []
    if roots and not current_only:
        roots += settings.SECRET_KEY_FALLBACKS
    return frozenset(_private_key(root).public_key().public_bytes_raw() for root in roots)


@lru_cache(maxsize=8)
def _private_key(root: str) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - takes 20 ms
        Ed25519PrivateKey,
    )

    return Ed25519PrivateKey.from_private_bytes(derive(PURPOSE, root))


def _signed(first: int, digest: bytes) -> bytes:
    return b"messages-bridge ledger" + first.to_bytes(8, "big") + digest
