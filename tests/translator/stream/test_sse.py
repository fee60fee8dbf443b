import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from translator.errors import BadUpstream
from translator.stream.sse import ServerSentEvent, SSEDecoder, format_sse

# After the examples of WHATWG HTML, 9.2.6, with every kind of line end.
RAW = (
    "\ufeffevent: a\r\ndata: héé\r\n\r\n: ping\n\nretry: 10\ndata:1\rdata: 2\rid: 7\r\r"
    "event:\ndata: x\n\n\n\ndata\ndata\n\ndata:\n\nevent: é\ndata:  y\n\n"
).encode()
EVENTS = [
    ServerSentEvent("a", "héé".encode()),
    ServerSentEvent("message", b"1\n2"),
    ServerSentEvent("message", b"x"),
    ServerSentEvent("message", b"\n"),
    ServerSentEvent("é", b" y"),
]


def decoded(raw: bytes, cuts: list[int]) -> list[ServerSentEvent]:
    decoder = SSEDecoder()
    ends = sorted(cut % (len(raw) + 1) for cut in cuts)
    reads = [raw[a:b] for a, b in zip([0, *ends], [*ends, len(raw)], strict=True)]
    return [event for read in reads for event in decoder.feed(read)] + decoder.end()


def test_the_examples_of_the_standard_are_decoded():
    assert decoded(RAW, []) == EVENTS


@given(cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_cutting_the_bytes_anywhere_changes_nothing(cuts):
    assert decoded(RAW, cuts) == EVENTS


@given(
    lines=st.lists(
        st.sampled_from(
            [
                b"data: 1",
                b"data:",
                b"data: ",
                b"event: n",
                b": c",
                b"event: e",
                b"",
                b"x",
                b"data: \xff",
            ]
        ),
        max_size=12,
    ),
    ending=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 10_000), max_size=9),
)
def test_any_lines_read_the_same_however_they_are_cut(lines, ending, cuts):
    raw = b"".join(line + ending for line in lines)

    assert decoded(raw, cuts) == decoded(raw, [])


@for_each("raw", [b"\xef\xbb\xbfdata: 1\n\n", b"\xef\xbbdata: 1\n\ndata: 1\n\n"])
def test_only_a_whole_byte_order_mark_is_taken_off(raw):
    assert decoded(raw, [1, 2]) == [ServerSentEvent("message", b"1")]


@for_each(
    ("tail", "data"),
    [
        (b'data: {"a":1}', [b'{"a":1}']),
        (b'data: {"a":1}\n', [b'{"a":1}']),
        (b"data: [DONE]", [b"[DONE]"]),
        (b'data: {"a":', []),
        (b"data: {}\ndata: 1\ndata: [D", [b"{}", b"1"]),
        (b"{}\n1\n[DONE]", [b"{}", b"1", b"[DONE]"]),
        (b": comment", []),
        (b"\xef\xbb", []),
        (b"data: " + b"[" * 100_000, []),
        (b"", []),
    ],
)
def test_a_tail_without_its_blank_line_counts_if_it_is_complete(tail, data):
    assert [event.data for event in decoded(tail, [])] == data


@for_each("read", [1, 7, 1000])
def test_an_event_beyond_the_maximum_size_is_refused(read):
    decoder = SSEDecoder(max_event_bytes=50)
    raw = b"data: 1\n\n" + b"data: " + b"x" * 45 + b"\n\ndata: 2\n\n"
    events_read = []

    def read_all():
        for start in range(0, len(raw), read):
            events_read.extend(decoder.feed(raw[start : start + read]))
        events_read.extend(decoder.feed(b"data: 3\n\n"))

    with pytest.raises(BadUpstream, match="more than 50 bytes"):
        read_all()
    assert events_read == [ServerSentEvent("message", b"1")]


def test_an_event_of_the_maximum_size_is_accepted():
    raw = b"data: " + b"x" * 44

    assert SSEDecoder(max_event_bytes=50).feed(raw + b"\n\n")[0].data == b"x" * 44


SCALARS = st.none() | st.text() | st.integers()


@given(
    payload=st.dictionaries(st.text(), st.recursive(SCALARS, st.lists, max_leaves=8), max_size=4)
)
def test_what_is_written_reads_back(payload):
    frame = format_sse("e", payload)

    [event] = SSEDecoder().feed(frame.encode())
    assert (event.event, json.loads(event.data)) == ("e", payload)


@given(
    kind=st.sampled_from(["text_delta", "thinking_delta", "input_json_delta", "signature_delta"]),
    name=st.sampled_from(["text", "thinking", "partial_json", "signature"]),
    text=st.text() | st.just("\ud83d half") | st.none(),
    index=st.integers(0, 3) | st.just("x"),
    extra=st.booleans(),
)
def test_a_delta_is_written_as_any_event_is(kind, name, text, index, extra):
    event = {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: text}}
    if extra:
        event["more"] = 1

    frame = format_sse("content_block_delta", event)

    assert frame.startswith("event: content_block_delta\ndata: ")
    assert frame.endswith("\n\n")
    assert frame.count("\n") == 3
    assert json.loads(frame.split("data: ", 1)[1]) == event
    frame.encode()


@for_each("fields", [{"more": 1}, {"index": -1}, {"type": "other"}])
@for_each("also", [{}, {"more": 1}])
def test_nothing_is_left_out_of_a_delta(fields, also):
    delta = {"type": "text_delta", "text": "hé\n", **also}
    event = {"type": "content_block_delta", "index": 2, "delta": delta, **fields}

    frame = format_sse("content_block_delta", event)

    assert json.loads(frame.split("data: ", 1)[1]) == event


def test_an_lf_that_belongs_to_a_cr_before_the_cut_ends_no_second_line():
    decoder = SSEDecoder()

    events_read = [
        *decoder.feed(b"data: 1\r"),
        *decoder.feed(b""),
        *decoder.feed(b"\ndata: 2\r"),
        *decoder.feed(b"\n\r\n"),
    ]

    assert events_read == [ServerSentEvent("message", b"1\n2")]


def test_what_is_just_not_too_large_goes_out_before_what_is():
    decoder = SSEDecoder(max_event_bytes=10)

    assert [event.data for event in decoder.feed(b"data: 1234\n\ndata: 12345\n\n")] == [b"1234"]
    with pytest.raises(BadUpstream):
        decoder.feed(b"\n")


def test_a_frame_is_what_the_sdk_expects():
    assert format_sse("ping", {"type": "ping"}) == 'event: ping\ndata: {"type":"ping"}\n\n'


def test_an_error_of_llama_cpp_in_a_field_of_its_own_is_an_event():
    raw = b'error: {"code":400,"message":"too long"}\n\ndata: [DONE]\n\n'

    assert decoded(raw, [3])[0] == ("error", b'{"code":400,"message":"too long"}')
    assert decoded(b"error: none\n\nerrors: {}\n\n", []) == []


@for_each("end", [b"", b"\n", b"\n\n"])
def test_json_that_is_no_field_is_an_event(end):
    body = b'{\n  "error": "no memory"\n}'

    first, last = decoded(b"data: 1\n\n" + body + end, [3])

    assert first == ("message", b"1")
    assert (last.event, last.data.strip()) == ("message", body)


def test_an_event_with_empty_data_is_ignored():
    assert SSEDecoder().feed(b"data: \n\ndata:\n\nevent: e\ndata: \n\nevent: e\n\n") == []


@given(
    frames=st.lists(
        st.sampled_from(
            [b"event: a\ndata: 1\n\n"] * 5
            + [b"event: \ndata: [2]\n\n", b"event: b\ndata: \n\n", b"event: c\ndata:3\n\n"]
            + [b"data: 4\n\n", b": c\n\n", b"\n", b"event: d\ndata: 5\r\n\r\n", b"\xef\xbb\xbf"]
            + [b"event: e\nid: 6\ndata: 6\n\n", b"data: 7\ndata: 8\n\n", b"event: f\n\n", b"x"]
        ),
        max_size=9,
    ),
    cuts=st.lists(st.integers(0, 10_000), max_size=3),
)
def test_reads_cut_anywhere_have_the_same_events(frames, cuts):
    raw = b"".join(frames)

    assert decoded(raw, cuts) == decoded(raw, [])


def test_reads_of_whole_events_are_decoded():
    decoder = SSEDecoder()

    reads = [decoder.feed(b"data: %d\n\ndata: x\n\n" % number) for number in range(3)]

    assert [[event.data for event in read] for read in reads] == [
        [b"0", b"x"],
        [b"1", b"x"],
        [b"2", b"x"],
    ]
