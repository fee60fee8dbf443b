"""The frames of parts and manifests: what is stored stays readable."""

import hashlib

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.record import frames


def test_the_words_never_change() -> None:
    """When this fails, put them back: installations hold frames that need every byte of them."""
    assert (
        hashlib.sha256(frames.WORDS).hexdigest()
        == "f79404bf292a3f04726860ad7fd700e9d4fc9135eaee2213aac4fee3bb501af2"
    )


@given(st.binary(max_size=10_000))
@example(b"")
@example(frames.WORDS)
def test_a_frame_holds_what_was_put_in(text: bytes) -> None:
    assert frames.plain(frames.compressor()(text)) == text


@given(st.binary(max_size=10_000))
@example(frames.WORDS)
def test_a_frame_without_the_words_reads_all_the_same(text: bytes) -> None:
    assert frames.plain(zstandard.compress(text)) == text


def test_a_short_part_takes_far_less_with_the_words() -> None:
    part = b'{"role":"user","content":[{"type":"text","text":"Where is the test of the parser?"}]}'

    assert len(frames.compressor()(part)) < len(zstandard.compress(part, frames.LEVEL)) * 0.75


def test_a_torn_frame_is_an_error() -> None:
    with pytest.raises(zstandard.ZstdError):
        frames.plain(frames.compressor()(b"words " * 100)[:-3])
