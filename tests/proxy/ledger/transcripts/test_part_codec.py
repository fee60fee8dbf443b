"""Compressed parts and manifests: stored frames stay readable."""

import hashlib

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.ledger.transcripts import part_codec


def test_the_dictionary_never_changes() -> None:
    """If this fails, restore the dictionary: stored frames cannot be read with another one."""
    assert (
        hashlib.sha256(part_codec.WORDS).hexdigest()
        == "f79404bf292a3f04726860ad7fd700e9d4fc9135eaee2213aac4fee3bb501af2"
    )


@given(st.binary(max_size=10_000))
@example(b"")
@example(part_codec.WORDS)
def test_a_frame_decompresses_to_the_original(text: bytes) -> None:
    assert part_codec.decompress(part_codec.compressor()(text)) == text


@given(st.binary(max_size=10_000))
@example(part_codec.WORDS)
def test_a_frame_without_the_dictionary_can_be_read(text: bytes) -> None:
    assert part_codec.decompress(zstandard.compress(text)) == text


def test_a_short_part_is_much_smaller_with_the_dictionary() -> None:
    part = b'{"role":"user","content":[{"type":"text","text":"Where is the test of the parser?"}]}'

    assert (
        len(part_codec.compressor()(part)) < len(zstandard.compress(part, part_codec.LEVEL)) * 0.75
    )


def test_a_truncated_frame_is_an_error() -> None:
    with pytest.raises(zstandard.ZstdError):
        part_codec.decompress(part_codec.compressor()(b"words " * 100)[:-3])
