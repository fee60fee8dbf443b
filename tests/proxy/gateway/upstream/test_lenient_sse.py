"""Unusual SSE frames are parsed leniently."""

import time

import msgspec
import pytest

from proxy.gateway.http.lenient_json import decode_event, decode_json
from tests.for_each import for_each
from translator.errors import BadUpstream
from translator.message_stream.events_to_message import fold

from .test_response_decoder import chunk, decode_reads, frame

SMILE = "\N{GRINNING FACE}"
LOST = "\N{REPLACEMENT CHARACTER}"
END = frame({"choices": [{"delta": {}, "finish_reason": "stop"}]})
DONE = b"data: [DONE]\n\n"
DEEP = b"[" * 900 + b"]" * 900


def text_block(text):
    return {"type": "text", "text": text, "citations": None}


def raw(text):
    """Return a chunk with this text, given as JSON escapes."""
    return chunk(content="TEXT").replace(b"TEXT", text)


def content_of(*reads):
    events, stream = decode_reads("chat", reads)
    assert stream.error is None
    return fold(events)["content"]


def line(event):
    return frame(event).removesuffix(b"\n")


@for_each("done", [b"[DONE]", b"[done]", b'"[DONE]"', b" [DONE] ", b"data: [DONE]"])
@for_each("way", [lambda *reads: reads, lambda *reads: [b"".join(reads)]])
def test_each_form_of_the_end_marker_ends_the_response(done, way):
    frames = way(chunk(content="Hi"), END, b"data: %b\n\n" % done, chunk(content="!"))

    assert content_of(*frames) == [text_block("Hi")]


def test_repeated_prefixes_take_linear_time():
    began = time.process_time()

    assert content_of(chunk(content="Hi"), END, b"data:" * 2**19 + b"[DONE]\n\n") == [
        text_block("Hi")
    ]
    assert time.process_time() - began < 5


@for_each("keep_alive", [b"data: null", b"data:", b"data: ", b'data: ""', b": ping"])
def test_a_keep_alive_frame_has_no_event(keep_alive):
    reads = [chunk(content="a"), keep_alive + b"\n\n", chunk(content="b"), END, DONE]

    assert content_of(*reads) == content_of(b"".join(reads)) == [text_block("ab")]


@for_each("malformed", [b"data: 1\n\n", b'data: "Hi"\n\n', b"data: {\ndata: 1\n\n"])
def test_data_that_is_not_an_event_ends_the_response_with_an_error(malformed):
    events, _ = decode_reads("chat", [chunk(content="a"), malformed, chunk(content="b"), END, DONE])

    assert fold(events)["stop_reason"] is None


@for_each("prefix", [b"", b"data:"])
@for_each("done", [[], [DONE]])
def test_events_may_end_in_one_line_feed(prefix, done):
    frames = [chunk(content="a"), chunk(content="b"), END, *done]
    lines = b"".join(prefix + event[6:-1] for event in frames)

    assert content_of(lines) == content_of(lines + b"\n\n") == [text_block("ab")]


def test_of_events_separated_by_one_line_feed_the_complete_ones_count():
    lines = line({"choices": [{"delta": {"content": "a"}}]}) * 2 + b'data: {"choi'

    events, stream = decode_reads("chat", [lines])

    assert fold(events)["content"] == [text_block("aa")]
    assert stream.error.message == "upstream stream ended early"


@for_each("pieces", [(b"a\\ud83d", b"\\ude00b"), (b"a\\uD83D", b"\\uDE00b")])
@for_each("way", [lambda *reads: reads, lambda *reads: [b"".join(reads)]])
def test_a_split_surrogate_pair_is_joined(pieces, way):
    frames = [chunk(content="x")] * 20 + [*map(raw, pieces)] + [chunk(content="y")] * 20

    events, _ = decode_reads("chat", way(*frames, END, DONE))

    text = "x" * 20 + "a" + SMILE + "b" + "y" * 20
    assert fold(events)["content"] == [text_block(text)]
    assert msgspec.json.encode(events)


def test_an_unpaired_surrogate_is_replaced_in_its_place():
    cut = raw(b"a\\ud83d")

    assert content_of(cut, chunk(content="b"), END, DONE)[0]["text"] == f"a{LOST}b"
    assert content_of(cut + chunk(content="b"), END)[0]["text"] == f"a{LOST}b"
    assert content_of(raw(b"a\\ud83d\\ude00"), raw(b"\\ude00"), END)[0]["text"] == f"a{SMILE}{LOST}"


@for_each("end", [DONE, b"data: [done]\n\n", b""])
def test_an_unpaired_surrogate_at_a_cut_is_replaced_before_the_error(end):
    events, stream = decode_reads("chat", [raw(b"a\\ud83d"), end])

    assert fold(events)["content"] == [text_block(f"a{LOST}")]
    assert stream.error is not None


def test_a_surrogate_pair_split_over_named_deltas_is_joined():
    place = {"item_id": "m1", "output_index": 0, "content_index": 0}
    kind = "response.output_text.delta"

    def delta(text):
        event = {"type": kind, **place, "delta": "TEXT"}
        return b"event: %b\n%b" % (kind.encode(), frame(event).replace(b"TEXT", text))

    body = {"id": "r", "status": "completed", "output": []}
    end = frame({"type": "response.completed", "response": body})
    deltas = [delta(b"x%d" % number) for number in range(40)]
    read = b"".join([*deltas, delta(b"\\ud83d"), delta(b"\\ude00"), *deltas, end])

    events, _ = decode_reads("responses", [read])

    words = "".join(f"x{number}" for number in range(40))
    assert fold(events)["content"] == [text_block(words + SMILE + words)]


def test_an_unpaired_surrogate_in_a_json_body_is_replaced():
    assert decode_json(b'{"a\\ud83d": ["\\ude00", NaN, 1.5]}') == {f"a{LOST}": [LOST, None, 1.5]}
    assert decode_event("x", b'{"a": "\\ude00"}') == {"a": LOST, "type": "x"}


@for_each("text", [b"{", b'{"a": 1e999, "b": NaN}', b"\xff", b'{"a": "\\ude00", "b": %b}' % DEEP])
def test_malformed_json_raises(text):
    with pytest.raises(BadUpstream, match=r"not JSON|too deeply"):
        decode_json(text)


def test_an_event_nested_too_deeply_ends_the_response():
    deep = b'data: {"choices": [], "x": "\\ud83d", "y": %b}\n\n' % DEEP

    events, stream = decode_reads("chat", [chunk(content="a"), deep, END])

    assert not stream.finished
    assert fold(events)["content"] == [text_block("a")]
