"""An upstream that repeats its credential: stars for it in every spelling, byte for byte."""

import base64
import itertools
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.masking import (
    SHORTEST,
    Redactor,
    masked,
    masked_error,
    masked_headers,
    spellings,
)

SECRET = b"azure-hex-0123456789abcdef"
ODD = 'pass/word+"é with=signs'
PIECES = st.lists(st.one_of(st.just(SECRET), st.binary(max_size=20)), max_size=6)


def fed(reads: list[bytes]) -> list[bytes]:
    redactor = Redactor(SECRET)
    return [*map(redactor.feed, reads), redactor.end()]


@given(PIECES, st.lists(st.integers(0, 120), max_size=6))
def test_the_secret_is_gone_however_it_was_cut_and_nothing_else_is(pieces, cuts):
    whole = b"".join(pieces)
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})

    clean = b"".join(fed([whole[a:b] for a, b in itertools.pairwise(edges)]))

    assert SECRET not in clean
    assert clean == whole.replace(SECRET, b"*" * len(SECRET)) or any(
        clean.endswith(b"*" * size) and whole.endswith(SECRET[:size])
        for size in range(SHORTEST, len(SECRET))
    )


@pytest.mark.parametrize("size", range(1, len(SECRET)))
def test_a_cut_at_each_byte_hides_the_secret_and_an_answer_that_ends_in_it_hides_the_half(size):
    assert b"".join(fed([b"a " + SECRET[:size], SECRET[size:] + b" z"])) == (
        b"a " + b"*" * len(SECRET) + b" z"
    )
    shown = SECRET[:size] if size < SHORTEST else b"*" * size
    assert b"".join(fed([b"a " + SECRET[:size]])) == b"a " + shown


def test_a_read_that_ends_a_frame_is_not_kept_back():
    redactor = Redactor(SECRET)

    assert redactor.feed(b"data: {}\n\n") == b"data: {}\n\n"
    assert redactor.feed(b"data: a") == b"data: "  # an "a" may begin it
    assert redactor.feed(b"z\n") == b"az\n"
    assert (redactor.held, redactor.end()) == (b"", b"")


@pytest.mark.parametrize("secret", [SECRET.decode(), ODD], ids=["plain", "odd"])
@pytest.mark.parametrize(
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
def test_each_spelling_is_hidden(secret, spelled):
    told = spelled(secret)

    clean = masked(b"<%b>" % told, secret.encode())

    assert len(clean) == len(told) + 2
    # Of base64, characters that hold bits of what surrounds the secret stay.
    assert clean.count(b"*") >= min(len(told), len(secret.encode()) * 4 // 3) - 14
    assert clean.count(b"*") >= len(secret) - 2


def test_no_secret_and_a_word_for_a_secret_change_nothing():
    assert masked(b"the key is key", b"") == b"the key is key"
    assert masked(b"the key is key", b"key") == b"the key is key"
    assert spellings(b"") == spellings(b"short") == ()
    assert Redactor(b"").feed(b"x") == b"x"


def test_headers_are_the_same_object_where_the_secret_is_in_none():
    headers = {"request-id": "req_1", "retry-after": "2"}

    assert masked_headers(headers, SECRET) is headers
    assert masked_headers(headers, b"") is headers
    told = {"request-id": f"of {SECRET.decode()}", "retry-after": "2"}
    assert masked_headers(told, SECRET) == {
        "request-id": f"of {'*' * len(SECRET)}",
        "retry-after": "2",
    }


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_only_the_frame_of_an_error_loses_what_looks_like_a_key(end):
    answer, error = b"data: sk-of-the-answer" + end, b"data: sk-of-the-error-0" + end
    reads = [(1.0, answer + error[:12]), (2.0, error[12:])]

    (_, first), (_, last) = kept = masked_error(reads)

    assert [(ms, len(raw)) for ms, raw in kept] == [(ms, len(raw)) for ms, raw in reads]
    assert first + last == answer + b"data: " + b"*" * 17 + end


def test_of_a_huge_error_the_beginning_is_kept():
    (kept,) = masked_error([(1.0, b'{"error": "' + b"x" * 2**20)])

    assert len(kept[1]) == 64 * 1024
