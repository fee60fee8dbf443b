"""An upstream that repeats the secret it was called with does not get it into our books."""

from typing import Final

Reads = list[tuple[float, bytes]]

SHORTEST: Final = 8
"""A shorter secret may be a word like any other."""


def masked(raw: bytes, secret: bytes) -> bytes:
    """The same bytes, with stars for the secret; as many as before."""
    if secret not in raw or len(secret) < SHORTEST:
        return raw
    return raw.replace(secret, b"*" * len(secret))


def masked_beginning(raw: bytes, secret: bytes) -> bytes:
    """The same of bytes that may break off in the middle of the secret."""
    clean = masked(raw, secret)
    for size in range(len(secret) - 1, SHORTEST - 1, -1):
        if clean.endswith(secret[:size]):
            return clean[:-size] + b"*" * size
    return clean


def masked_reads(reads: Reads, secret: bytes) -> Reads:
    """The same reads, also where the secret came in two of them."""
    whole = reads[0][1] if len(reads) == 1 else b"".join([raw for _, raw in reads])
    clean = masked(whole, secret)
    if clean is whole:
        return reads
    at, found = 0, []
    for ms, raw in reads:
        found.append((ms, clean[at : at + len(raw)]))
        at += len(raw)
    return found
