"""Amazon's event stream: any cut, any flipped bit, and botocore as the reference."""

import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.upstreams.amazon_event_stream import event, exception, frame
from tests.for_each import for_each
from translator.anthropic_upstream.bedrock_events import EventStreamDecoder
from translator.errors import BadUpstream

FRAMES = [
    event({"type": "message_start"}),
    frame({":message-type": "event"}, b""),
    exception("throttlingException", "slow down"),
    frame({}, b"x" * 1_000),
]
STREAM = b"".join(FRAMES)


def decode(*reads: bytes):
    decoder = EventStreamDecoder()
    return [found for read in reads for found in decoder.feed(read)]


def test_botocore_decodes_the_same_frames():
    eventstream = pytest.importorskip("botocore.eventstream")  # not on other Python versions
    reference = eventstream.EventStreamBuffer()
    reference.add_data(STREAM)

    expected = [(each.headers, each.payload) for each in reference]

    assert decode(STREAM) == expected


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_frames_do_not_depend_on_the_reads(cuts):
    ends = sorted({0, *cuts, len(STREAM)})

    assert decode(*(STREAM[a:b] for a, b in pairwise(ends))) == decode(STREAM)


@given(st.integers(0, len(STREAM) * 8 - 1))
def test_a_flipped_bit_is_never_decoded(bit):
    damaged = bytearray(STREAM)
    damaged[bit // 8] ^= 1 << bit % 8
    decoder = EventStreamDecoder()

    try:
        found = decoder.feed(bytes(damaged))
    except BadUpstream:
        return
    assert found == decode(STREAM)[: len(found)]
    assert len(found) < len(FRAMES)


def sealed(prelude: bytes, rest: bytes = b"") -> bytes:
    start = prelude + struct.pack(">I", zlib.crc32(prelude)) + rest
    return start + struct.pack(">I", zlib.crc32(start))


@for_each(
    ("size", "headers"),
    [(0, 0), (15, 0), (2**32 - 1, 0), (25 * 2**20, 0), (16, 1), (20 * 2**20, 200 * 1024)],
)
def test_an_impossible_length_is_refused_before_its_bytes_arrive(size, headers):
    with pytest.raises(BadUpstream):
        decode(sealed(struct.pack(">II", size, headers)))


@for_each(
    "headers",
    [b"\x05ab", b"\x01a", b"\x01a\x07\x00\xffabc", b"\x01a\x63", b"\x01\xff\x00", b"\x01a\x04\x00"],
)
def test_malformed_headers_are_refused(headers):
    raw = sealed(struct.pack(">II", 16 + len(headers), len(headers)), headers)

    with pytest.raises(BadUpstream, match="malformed headers"):
        decode(raw)


def test_headers_of_other_types_are_skipped():
    values = [(0, b""), (1, b""), (2, b"a"), (3, b"ab"), (4, b"abcd"), (5, b"a" * 8),
              (6, b"\x00\x03abc"), (7, b"\x00\x02ok"), (8, b"a" * 8), (9, b"a" * 16)]  # fmt: skip
    headers = b"".join(b"\x02h%d" % kind + bytes([kind]) + value for kind, value in values)
    raw = sealed(struct.pack(">II", 16 + len(headers), len(headers)), headers)

    assert decode(raw) == [({"h7": "ok"}, b"")]
