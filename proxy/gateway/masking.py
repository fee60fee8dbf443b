"""Remove an upstream's own credential from what that upstream sends, before anything reads it.

``upstream.Call`` is the only reader of an upstream's answer, and passes each read and each header
through here. So no stream, error body, log, transcript or client can hold the credential.
"""

import base64
import json
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from translator.secret_redaction import masked_shapes

Reads = list[tuple[float, bytes]]

SHORTEST: Final = 8
"""A shorter secret may be a word like any other."""
FRAME_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
MOST_ERROR_BYTES: Final = 64 * 1024


@lru_cache(maxsize=256)
def spellings(secret: bytes) -> tuple[bytes, ...]:
    """Return how the secret may be written: plain, URL-encoded, in JSON or in base64.

    ``secret`` is UTF-8 of what a header can hold, so it has Latin-1 letters only. Base64, as in
    ``Authorization: Basic``, depends on how many bytes come before the secret, modulo three; each
    spelling is the part that depends on the secret alone. Longest first: one may hold another.
    """
    if len(secret) < SHORTEST:
        return ()
    text = secret.decode()
    quoted, written = quote(text, safe=""), json.dumps(text)[1:-1]
    found = {secret, text.encode("latin-1"), quoted.encode(), written.encode()}
    if quoted != text:
        found |= {quoted.lower().encode(), written.replace("/", "\\/").encode()}
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + secret)
        # A character is 6 bits: those that share a byte with what is before or behind it go.
        coded = coded[(before * 8 + 5) // 6 : (before + len(secret)) * 8 // 6]
        found |= {coded, coded.translate(bytes.maketrans(b"+/", b"-_"))}
    return tuple(sorted(found, key=lambda one: (-len(one), one)))


def sought(secret: bytes) -> bytes:
    """Return the secret to look for in a read of plain deltas; else what no such read holds."""
    return secret if len(secret) >= SHORTEST else b"\n\n\n"


def masked(raw: bytes, secret: bytes) -> bytes:
    """Return the same bytes with stars for each spelling of the secret; as many as before."""
    for spelling in spellings(secret):
        if spelling in raw:
            raw = raw.replace(spelling, b"*" * len(spelling))
    return raw


def masked_headers(headers: dict[str, str], secret: bytes) -> dict[str, str]:
    """Return the headers of an answer without the secret; the same object where it is in none."""
    texts = "\n".join(headers.values()).encode("latin-1")
    if masked(texts, secret) is texts:
        return headers
    return {
        name: masked(text.encode("latin-1"), secret).decode("latin-1")
        for name, text in headers.items()
    }


def masked_error(reads: Reads) -> Reads:
    """Return the same reads, the last of which holds an error, without any credential in it.

    The error's frame may begin in an earlier read. What precedes that frame is the model's answer
    and stays as it came. Of the error 64 KiB are kept.
    """
    whole = b"".join([raw for _, raw in reads])
    last = len(whole) - len(reads[-1][1])
    start = 1 + max(whole.rfind(end, 0, last) for end in FRAME_ENDS)
    clean = whole[:start] + masked_shapes(whole[start : start + MOST_ERROR_BYTES])
    at, found = 0, []
    for ms, raw in reads:
        found.append((ms, clean[at : at + len(raw)]))
        at += len(raw)
    return found


class Redactor:
    """Masks a secret in bytes that arrive in reads, wherever the reads are cut.

    A read that ends in what may be the beginning of the secret keeps that end back until the next
    one. Frames of a stream end in a line feed, which no secret holds, so no event is delayed.
    """

    __slots__ = ("_spellings", "held")

    def __init__(self, secret: bytes) -> None:
        self._spellings = spellings(secret)
        self.held = b""

    def feed(self, raw: bytes) -> bytes:
        """Return what may be read now; nothing where all of it is kept back."""
        if self.held:
            raw, self.held = self.held + raw, b""
        for spelling in self._spellings:
            if spelling in raw:
                raw = raw.replace(spelling, b"*" * len(spelling))
        if raw[-1:] != b"\n" and (size := self._begun_at_end_of(raw)):
            raw, self.held = raw[:-size], raw[-size:]
        return raw

    def end(self) -> bytes:
        """Return what was kept back, now that no more bytes come."""
        held, self.held = self.held, b""
        return b"*" * len(held) if len(held) >= SHORTEST else held

    def _begun_at_end_of(self, raw: bytes) -> int:
        """Return how many bytes at the end of ``raw`` a spelling begins with."""
        longest = 0
        for spelling in self._spellings:
            at = raw.find(spelling[:1], max(0, len(raw) - len(spelling) + 1))
            while at >= 0 and not spelling.startswith(raw[at:]):
                at = raw.find(spelling[:1], at + 1)
            if at >= 0:
                longest = max(longest, len(raw) - at)
        return longest
