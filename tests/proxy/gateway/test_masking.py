"""An upstream that repeats our secret: stars in the books and in its errors, byte for byte."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.masking import SHORTEST, masked, masked_beginning, masked_reads

SECRET = b"azure-hex-0123456789abcdef"
PIECES = st.lists(st.one_of(st.just(SECRET), st.binary(max_size=20)), max_size=6)


@given(PIECES, st.lists(st.integers(0, 120), max_size=6))
def test_the_secret_is_gone_however_it_was_cut_and_nothing_else_is(pieces, cuts):
    whole = b"".join(pieces)
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    reads = [(float(n), whole[a:b]) for n, (a, b) in enumerate(itertools.pairwise(edges))]

    kept = masked_reads(reads, SECRET)

    assert [(ms, len(raw)) for ms, raw in kept] == [(ms, len(raw)) for ms, raw in reads]
    clean = b"".join(raw for _, raw in kept)
    assert SECRET not in clean
    assert clean == whole.replace(SECRET, b"*" * len(SECRET))


@given(PIECES, st.integers(0, len(SECRET)))
def test_a_beginning_has_no_secret_and_no_half_of_one(pieces, size):
    whole = b"".join(pieces)

    clean = masked_beginning(whole + SECRET[:size], SECRET)

    hidden = size if size >= SHORTEST else 0
    rest = SECRET[: size - hidden]
    assert clean == whole.replace(SECRET, b"*" * len(SECRET)) + rest + b"*" * hidden
    assert masked_beginning(whole, b"") == whole


def test_no_secret_and_a_word_for_a_secret_change_nothing():
    assert masked(b"the key is key", b"") == b"the key is key"
    assert masked(b"the key is key", b"key") == b"the key is key"
    reads = [(1.0, b"nothing to see")]
    assert masked_reads(reads, SECRET) is reads
