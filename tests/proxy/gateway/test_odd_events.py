"""Frames that are not written as nearly all are say what they say all the same."""

import msgspec
import pytest

from proxy.gateway.decoding import decode_event, decode_json
from translator.anthropic.fold import fold
from translator.errors import BadUpstream

from .test_hearing import chunk, frame, heard

SMILE = "\N{GRINNING FACE}"
LOST = "\N{REPLACEMENT CHARACTER}"
END = frame({"choices": [{"delta": {}, "finish_reason": "stop"}]})
DONE = b"data: [DONE]\n\n"
DEEP = b"[" * 900 + b"]" * 900


def raw(text):
    """A chunk that says this, as escapes of JSON."""
    return chunk(content="TEXT").replace(b"TEXT", text)


def told(*reads):
    said, stream = heard("chat", reads)
    assert stream.error is None
    return fold(said)["content"]


def line(event):
    return frame(event).removesuffix(b"\n")


@pytest.mark.parametrize("done", [b"[DONE]", b"[done]", b'"[DONE]"', b" [DONE] ", b"data: [DONE]"])
@pytest.mark.parametrize("way", [lambda *reads: reads, lambda *reads: [b"".join(reads)]])
def test_an_answer_ends_with_whatever_a_server_says_that_it_is_done_by(done, way):
    frames = way(chunk(content="Hi"), END, b"data: %b\n\n" % done, chunk(content="!"))

    assert told(*frames) == [{"type": "text", "text": "Hi"}]


@pytest.mark.parametrize("nothing", [b"data: null", b"data:", b"data: ", b'data: ""', b": ping"])
def test_a_sign_of_life_says_nothing(nothing):
    reads = [chunk(content="a"), nothing + b"\n\n", chunk(content="b"), END, DONE]

    assert told(*reads) == told(b"".join(reads)) == [{"type": "text", "text": "ab"}]


@pytest.mark.parametrize("odd", [b"data: 1\n\n", b'data: "Hi"\n\n', b"data: {\ndata: 1\n\n"])
def test_what_is_no_event_ends_the_answer_in_an_error(odd):
    said, _ = heard("chat", [chunk(content="a"), odd, chunk(content="b"), END, DONE])

    assert fold(said)["stop_reason"] is None


@pytest.mark.parametrize("prefix", [b"", b"data:"])
@pytest.mark.parametrize("done", [[], [DONE]])
def test_events_may_end_in_one_line_feed(prefix, done):
    events = [chunk(content="a"), chunk(content="b"), END, *done]
    lines = b"".join(prefix + event[6:-1] for event in events)

    assert told(lines) == told(lines + b"\n\n") == [{"type": "text", "text": "ab"}]


def test_of_such_lines_those_that_are_complete_count():
    lines = line({"choices": [{"delta": {"content": "a"}}]}) * 2 + b'data: {"choi'

    said, stream = heard("chat", [lines])

    assert fold(said)["content"] == [{"type": "text", "text": "aa"}]
    assert stream.error.message == "upstream stream ended early"


@pytest.mark.parametrize("pieces", [(b"a\\ud83d", b"\\ude00b"), (b"a\\uD83D", b"\\uDE00b")])
@pytest.mark.parametrize("way", [lambda *reads: reads, lambda *reads: [b"".join(reads)]])
@pytest.mark.parametrize("flows", [False, True])
def test_an_emoji_that_was_cut_in_two_is_one_again(pieces, way, flows):
    frames = [chunk(content="x")] * 20 + [*map(raw, pieces)] + [chunk(content="y")] * 20

    said, _ = heard("chat", way(*frames, END, DONE), flows=flows)

    text = "x" * 20 + "a" + SMILE + "b" + "y" * 20
    assert fold(said)["content"] == [{"type": "text", "text": text}]
    assert msgspec.json.encode(said)


def test_half_of_one_is_told_as_unknown_where_it_stood():
    cut = raw(b"a\\ud83d")

    assert told(cut, chunk(content="b"), END, DONE)[0]["text"] == f"a{LOST}b"
    assert told(cut + chunk(content="b"), END)[0]["text"] == f"a{LOST}b"
    assert told(raw(b"a\\ud83d\\ude00"), raw(b"\\ude00"), END)[0]["text"] == f"a{SMILE}{LOST}"


@pytest.mark.parametrize("end", [DONE, b"data: [done]\n\n", b""])
def test_half_of_one_at_a_cut_is_told_before_the_error(end):
    said, stream = heard("chat", [raw(b"a\\ud83d"), end])

    assert fold(said)["content"] == [{"type": "text", "text": f"a{LOST}"}]
    assert stream.error is not None


def test_named_deltas_are_joined_in_the_midst_of_others():
    place = {"item_id": "m1", "output_index": 0, "content_index": 0}
    kind = "response.output_text.delta"

    def delta(text):
        event = {"type": kind, **place, "delta": "TEXT"}
        return b"event: %b\n%b" % (kind.encode(), frame(event).replace(b"TEXT", text))

    body = {"id": "r", "status": "completed", "output": []}
    end = frame({"type": "response.completed", "response": body})
    deltas = [delta(b"x%d" % number) for number in range(40)]
    read = b"".join([*deltas, delta(b"\\ud83d"), delta(b"\\ude00"), *deltas, end])

    said, _ = heard("responses", [read])

    words = "".join(f"x{number}" for number in range(40))
    assert fold(said)["content"] == [{"type": "text", "text": words + SMILE + words}]


def test_half_of_one_in_a_whole_answer_is_told_as_unknown():
    assert decode_json(b'{"a\\ud83d": ["\\ude00", NaN, 1.5]}') == {f"a{LOST}": [LOST, None, 1.5]}
    assert decode_event("x", b'{"a": "\\ude00"}') == {"a": LOST, "type": "x"}


@pytest.mark.parametrize(
    "text", [b"{", b'{"a": 1e999, "b": NaN}', b"\xff", b'{"a": "\\ude00", "b": %b}' % DEEP]
)
def test_what_is_no_json_is_told_as_such(text):
    with pytest.raises(BadUpstream, match=r"not JSON|too deeply"):
        decode_json(text)


def test_events_nested_too_deeply_end_the_answer():
    deep = b'data: {"choices": [], "x": "\\ud83d", "y": %b}\n\n' % DEEP

    said, stream = heard("chat", [chunk(content="a"), deep, END])

    assert not stream.finished
    assert fold(said)["content"] == [{"type": "text", "text": "a"}]
