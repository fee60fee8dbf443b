"""Redact the credential that the gateway sends to an upstream from the upstream's responses.

``proxy.gateway.upstream.client`` is the only code that reads upstream responses, and it passes each
read and each header through this module. So an upstream that repeats the credential cannot make it
appear in a stream, an error body, a log or a transcript.
"""

import base64
import json
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from translator.secret_redaction import mask_secrets

Reads = list[tuple[float, bytes]]

SHORTEST: Final = 8
"""A secret with fewer bytes may be an ordinary word, so it is not redacted."""
FRAME_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
MOST_ERROR_BYTES: Final = 64 * 1024


@lru_cache(maxsize=256)
def spellings(secrets: bytes) -> tuple[bytes, ...]:
    """Return the possible encodings of each secret; ``secrets`` has one in each line.

    The longest spelling is first, because one may contain another.
    """
    found = {each for secret in secrets.split(b"\n") for each in _spellings_of(secret)}
    return tuple(sorted(found, key=lambda one: (-len(one), one)))


def _spellings_of(secret: bytes) -> set[bytes]:
    """Return the possible encodings of the secret: plain, URL-encoded, in JSON and in base64.

    ``secret`` is the UTF-8 encoding of a header value, so it consists of Latin-1 characters.
    Base64, as in ``Authorization: Basic``, depends on the number of bytes before the secret, modulo
    three. So there are three base64 spellings, each without the characters that depend on other
    bytes.
    """
    if len(secret) < SHORTEST:
        return set()
    text = secret.decode()
    quoted, written = quote(text, safe=""), json.dumps(text)[1:-1]
    found = {secret, text.encode("latin-1"), quoted.encode(), written.encode()}
    if quoted != text:
        found |= {quoted.lower().encode(), written.replace("/", "\\/").encode()}
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + secret)
        # A base64 character has 6 bits. Drop characters that also depend on bytes before or after
        # the secret.
        coded = coded[(before * 8 + 5) // 6 : (before + len(secret)) * 8 // 6]
        found |= {coded, coded.translate(bytes.maketrans(b"+/", b"-_"))}
    return found


def redact(raw: bytes, secret: bytes) -> bytes:
    """Return the bytes with each spelling of the secret replaced by as many asterisks."""
    for spelling in spellings(secret):
        if spelling in raw:
            raw = raw.replace(spelling, b"*" * len(spelling))
    return raw


def redact_headers(headers: dict[str, str], secret: bytes) -> dict[str, str]:
    """Return the headers with the secret redacted; the same object if none contains it."""
    texts = "\n".join(headers.values()).encode("latin-1")
    if redact(texts, secret) is texts:
        return headers
    return {
        name: redact(text.encode("latin-1"), secret).decode("latin-1")
        for name, text in headers.items()
    }


def redact_error_body(reads: Reads) -> Reads:
    """Return the reads with all credentials masked in the error that ends the last read.

    The SSE frame of the error may begin in an earlier read. The bytes before that frame are the
    model's output and stay unchanged. The error is truncated to 64 KiB.
    """
    whole = b"".join([raw for _, raw in reads])
    last = len(whole) - len(reads[-1][1])
    start = 1 + max(whole.rfind(end, 0, last) for end in FRAME_ENDS)
    clean = whole[:start] + mask_secrets(whole[start : start + MOST_ERROR_BYTES])
    at, found = 0, []
    for ms, raw in reads:
        found.append((ms, clean[at : at + len(raw)]))
        at += len(raw)
    return found


class Redactor:
    """Redacts an upstream's secrets in a sequence of reads, even if one is split between reads.

    If the end of a read may be the start of the secret, it is buffered until the next read. SSE
    frames end in a line feed, which no secret contains, so no event is delayed.
    """

    __slots__ = ("_spellings", "pending")

    def __init__(self, secret: bytes) -> None:
        self._spellings = spellings(secret)
        self.pending = b""

    def feed(self, raw: bytes) -> bytes:
        """Add the bytes of a read. Return the redacted bytes that are not buffered."""
        if self.pending:
            raw, self.pending = self.pending + raw, b""
        for spelling in self._spellings:
            if spelling in raw:
                raw = raw.replace(spelling, b"*" * len(spelling))
        if raw[-1:] != b"\n" and (size := self._partial_match_length(raw)):
            raw, self.pending = raw[:-size], raw[-size:]
        return raw

    def end(self) -> bytes:
        """Return the buffered bytes. Call this after the last read."""
        rest, self.pending = self.pending, b""
        return b"*" * len(rest) if len(rest) >= SHORTEST else rest

    def _partial_match_length(self, raw: bytes) -> int:
        """Return the length of the longest suffix of ``raw`` that is the start of the secret."""
        longest = 0
        for spelling in self._spellings:
            at = raw.find(spelling[:1], max(0, len(raw) - len(spelling) + 1))
            while at >= 0 and not spelling.startswith(raw[at:]):
                at = raw.find(spelling[:1], at + 1)
            if at >= 0:
                longest = max(longest, len(raw) - at)
        return longest
