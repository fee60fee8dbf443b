"""The credential of an upstream is replaced by stars in every spelling, byte for byte."""

import base64
import itertools
import json
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.http.secret_redaction import (
    SHORTEST,
    Redactor,
    redact,
    redact_error_body,
    redact_headers,
    spellings,
)
from tests.for_each import for_each

SECRET = b"azure-hex-0123456789abcdef"
SPECIAL = 'pass/word+"é with=signs'
PIECES = st.lists(st.one_of(st.just(SECRET), st.binary(max_size=20)), max_size=6)


def redact_reads(reads: list[bytes]) -> list[bytes]:
    redactor = Redactor(SECRET)
    return [*map(redactor.feed, reads), redactor.end()]


@given(PIECES, st.lists(st.integers(0, 120), max_size=6))
def test_only_the_secret_is_masked_at_any_split_into_reads(pieces, cuts):
    whole = b"".join(pieces)
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})

    clean = b"".join(redact_reads([whole[a:b] for a, b in itertools.pairwise(edges)]))

    assert SECRET not in clean
    assert clean == whole.replace(SECRET, b"*" * len(SECRET)) or any(
        clean.endswith(b"*" * size) and whole.endswith(SECRET[:size])
        for size in range(SHORTEST, len(SECRET))
    )


@for_each("size", range(1, len(SECRET)))
def test_a_secret_split_at_any_byte_is_masked_also_a_partial_one_at_the_end(size):
    assert b"".join(redact_reads([b"a " + SECRET[:size], SECRET[size:] + b" z"])) == (
        b"a " + b"*" * len(SECRET) + b" z"
    )
    shown = SECRET[:size] if size < SHORTEST else b"*" * size
    assert b"".join(redact_reads([b"a " + SECRET[:size]])) == b"a " + shown


def test_a_read_that_ends_a_frame_is_not_buffered():
    redactor = Redactor(SECRET)

    assert redactor.feed(b"data: {}\n\n") == b"data: {}\n\n"
    assert redactor.feed(b"data: a") == b"data: "  # the secret may begin with "a"
    assert redactor.feed(b"z\n") == b"az\n"
    assert (redactor.pending, redactor.end()) == (b"", b"")


@for_each("secret", [SECRET.decode(), SPECIAL], ids=["plain", "special"])
@for_each(
    "spelled",
    [
        lambda text: text.encode(),
        lambda text: text.encode("latin-1"),
        lambda text: quote(text, safe="").encode(),
        lambda text: quote(text, safe="").lower().encode(),
        lambda text: json.dumps(text)[1:-1].encode(),
        lambda text: json.dumps(text)[1:-1].replace("/", "\\/").encode(),
        *(
            lambda text, user=user, code=code: code(f"{user}{text}:x".encode())
            for user in ("", "a", "ab", "user:", "api-key:")
            for code in (base64.b64encode, base64.urlsafe_b64encode)
        ),
    ],
)
def test_each_spelling_of_the_secret_is_masked(secret, spelled):
    text_with_secret = spelled(secret)

    clean = redact(b"<%b>" % text_with_secret, secret.encode())

    assert len(clean) == len(text_with_secret) + 2
    # In base64, characters that also encode bits of the neighboring bytes stay.
    assert clean.count(b"*") >= min(len(text_with_secret), len(secret.encode()) * 4 // 3) - 14
    assert clean.count(b"*") >= len(secret) - 2


def test_an_empty_or_short_secret_masks_nothing():
    assert redact(b"the key is key", b"") == b"the key is key"
    assert redact(b"the key is key", b"key") == b"the key is key"
    assert spellings(b"") == spellings(b"short") == ()
    assert Redactor(b"").feed(b"x") == b"x"


def test_headers_without_the_secret_are_the_same_object():
    headers = {"request-id": "req_1", "retry-after": "2"}

    assert redact_headers(headers, SECRET) is headers
    assert redact_headers(headers, b"") is headers
    with_secret = {"request-id": f"of {SECRET.decode()}", "retry-after": "2"}
    assert redact_headers(with_secret, SECRET) == {
        "request-id": f"of {'*' * len(SECRET)}",
        "retry-after": "2",
    }


@for_each("end", [b"\n\n", b"\r\n\r\n"])
def test_only_the_error_frame_is_masked_for_credential_patterns(end):
    answer, error = b"data: sk-of-the-answer" + end, b"data: sk-of-the-error-0" + end
    reads = [(1.0, answer + error[:12]), (2.0, error[12:])]

    (_, first), (_, last) = redacted = redact_error_body(reads)

    assert [(ms, len(raw)) for ms, raw in redacted] == [(ms, len(raw)) for ms, raw in reads]
    assert first + last == answer + b"data: " + b"*" * 17 + end


def test_a_huge_error_is_truncated():
    (redacted,) = redact_error_body([(1.0, b'{"error": "' + b"x" * 2**20)])

    assert len(redacted[1]) == 64 * 1024
