"""Compressed parts and manifests: stored frames stay readable."""

import hashlib

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.ledger.transcripts import zstd_dictionary


def test_the_dictionary_never_changes() -> None:
    """If this fails, restore the dictionary: stored frames cannot be read with another one."""
    assert (
        hashlib.sha256(zstd_dictionary.WORDS).hexdigest()
        == "f79404bf292a3f04726860ad7fd700e9d4fc9135eaee2213aac4fee3bb501af2"
    )


@given(st.binary(max_size=10_000))
@example(b"")
@example(zstd_dictionary.WORDS)
def test_a_frame_decompresses_to_the_original(text: bytes) -> None:
    assert zstd_dictionary.decompress(zstd_dictionary.compressor()(text)) == text


@given(st.binary(max_size=10_000))
@example(zstd_dictionary.WORDS)
def test_a_frame_without_the_dictionary_can_be_read(text: bytes) -> None:
    assert zstd_dictionary.decompress(zstandard.compress(text)) == text


def test_a_short_part_is_much_smaller_with_the_dictionary() -> None:
    part = b'{"role":"user","content":[{"type":"text","text":"Where is the test of the parser?"}]}'

    assert (
        len(zstd_dictionary.compressor()(part))
        < len(zstandard.compress(part, zstd_dictionary.LEVEL)) * 0.75
    )


def test_a_truncated_frame_is_an_error() -> None:
    with pytest.raises(zstandard.ZstdError):
        zstd_dictionary.decompress(zstd_dictionary.compressor()(b"words " * 100)[:-3])
