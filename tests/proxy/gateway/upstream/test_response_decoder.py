"""The response decoder: decoding many deltas at once equals decoding them one by one."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.http.lenient_json import decode_event
from proxy.gateway.snapshot.dialects import DIALECTS
from proxy.gateway.upstream.response_decoder import ResponseDecoder
from proxy.gateway.upstream.response_writers import BatchedTextDelta, encode_events
from tests.for_each import for_each
from tests.lanes import repeat
from translator.dialect import ResponseContext
from translator.errors import BadUpstream
from translator.message_stream.events_to_message import fold
from translator.stream.sse import DONE, SSEDecoder

CORPUS = Path(__file__).parents[6] / "shared" / "corpus"
RECORDINGS = sorted([*CORPUS.glob("chat-stream/*.sse"), *CORPUS.glob("responses-stream/*.sse")])[
    :: repeat(fast=4, slow=1)
] or [
    pytest.param(None, marks=pytest.mark.skip(reason=f"NO CORPUS at {CORPUS}: nothing is compared"))
]
USUAL = {"id": "c1", "object": "chat.completion.chunk", "model": "m"}


def stream_of(dialect, **context):
    return DIALECTS[dialect].stream(ResponseContext(message_id="msg_1", model="m", **context))


def one_by_one(dialect, reads, **context):
    """Return the events of a response whose events are translated one by one."""
    stream, decoder, events = stream_of(dialect, **context), SSEDecoder(), []
    try:
        for raw in [*reads, b""]:
            for name, text in decoder.feed(raw) if raw else decoder.end():
                events += (
                    stream.end() if text.strip() == DONE else stream.feed(decode_event(name, text))
                )
                if stream.finished:
                    return events, stream
    except BadUpstream:
        return events, stream
    return events + stream.end(), stream


def decode_reads(dialect, reads, **context):
    """Return the events of a ``ResponseDecoder``, and its stream."""
    stream = stream_of(dialect, **context)
    decoder, events = ResponseDecoder(stream, dialect), []
    try:
        for raw in [*reads, b""]:
            decoder.feed(raw)
            events += decoder.events
            if stream.finished:
                break
    except BadUpstream:
        events += decoder.events
    return events, stream


def chunk(**delta):
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return frame({**USUAL, "choices": [choice]})


def text_chunk(piece):
    return chunk(content=piece)


def frame(event):
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def assert_decodes_to_equal_bytes(dialect, reads):
    events, stream = decode_reads(dialect, reads)
    expected, reference = one_by_one(dialect, reads)

    assert encode_events(events) == encode_events(expected)
    assert fold(events) == fold(expected)
    assert (stream.usage, stream.notes, stream.unknown, stream.upstream_id) == (
        reference.usage,
        reference.notes,
        reference.unknown,
        reference.upstream_id,
    )


@pytest.mark.repeated
@for_each("recording", RECORDINGS, ids=lambda path: path.stem if path else "no corpus")
def test_a_recording_decodes_to_equal_bytes_at_any_read_size(recording):
    dialect = recording.parent.name.removesuffix("-stream")
    whole = recording.read_bytes()
    events = whole.replace(b"\r\n", b"\n").split(b"\n\n")

    for size in (1_000, 65_536):
        reads = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert_decodes_to_equal_bytes(dialect, reads)
    for at_once in (1, 2, 3, 7):
        groups = (events[at : at + at_once] for at in range(0, len(events), at_once))
        reads = [b"".join(event + b"\n\n" for event in group) for group in groups]
        assert_decodes_to_equal_bytes(dialect, reads)


def test_a_run_of_text_is_translated_at_once():
    pieces = [f"piece {number} é" for number in range(20)]

    opening = chunk(role="assistant", content="")
    events, _ = decode_reads("chat", [b"".join([opening, *map(text_chunk, pieces)])])

    runs = [event for event in events if isinstance(event, BatchedTextDelta)]
    assert [run.pieces for run in runs] == [pieces]
    assert runs[0]["delta"]["text"] == "".join(pieces)


@for_each(
    "unusual",
    [
        chunk(content=""),
        chunk(content="x", audio={"id": "a"}),
        chunk(content=None, tool_calls=[{"index": 0, "id": "c", "function": {"name": "f"}}]),
        chunk(reasoning_content="hm"),
        frame({**USUAL, "choices": [{"index": 1, "delta": {"content": "second"}}]}),
        frame({**USUAL, "choices": []}),
        frame({**USUAL, "choices": [{"delta": {"content": "x"}}], "usage": {"prompt_tokens": 3}}),
        frame({**USUAL, "choices": [{"delta": {"content": "x"}}], "citations": ["https://a.test"]}),
        frame({**USUAL, "choices": [{"delta": {"content": "x"}, "error": {"message": "no"}}]}),
        frame(
            {**USUAL, "choices": [{"delta": {"content": "x"}, "usage": {"completion_tokens": 3}}]}
        ),
        frame({"error": {"message": "broken", "code": 500}}),
        frame({**USUAL, "choices": [{"delta": {}, "finish_reason": "length"}]}),
        b"data: [DONE]\n\n",
        b'data: {"choices":\n\n',
        b": a comment\n\n",
    ],
)
def test_an_event_that_is_not_plain_is_decoded_in_its_order(unusual):
    text = b"".join(chunk(content=piece) for piece in "abcdef")
    reads = [text + unusual + text + frame({**USUAL, "choices": [{"finish_reason": "stop"}]})]

    events, stream = decode_reads("chat", reads)
    expected, reference = one_by_one("chat", reads)

    assert encode_events(events) == encode_events(expected)
    assert (stream.usage, stream.unknown) == (reference.usage, reference.unknown)


@given(st.lists(st.text(max_size=5), min_size=1, max_size=30), st.sampled_from(["", "a", "ab"]))
def test_a_stop_sequence_is_found_at_any_split_of_the_text(pieces, stop):
    try:
        reads = [b"".join(chunk(content=piece) for piece in pieces)]
    except UnicodeEncodeError:
        return  # half a surrogate pair: no server can send it unescaped
    context = {"stop_sequences": (stop,)} if stop else {}

    events, stream = decode_reads("chat", reads, **context)
    expected, reference = one_by_one("chat", reads, **context)

    assert fold(events).get("content") == fold(expected).get("content")
    assert stream.stop_reason == reference.stop_reason


def test_texts_of_different_parts_are_not_joined():
    def delta(part, text):
        place = {"item_id": "m1", "output_index": 0, "content_index": part}
        return frame({"type": "response.output_text.delta", **place, "delta": text})

    reads = [
        b"".join(
            delta(part, text) for part, text in zip([0] * 5 + [1] * 5, "abcdefghij", strict=True)
        )
    ]

    events, _ = decode_reads("responses", reads)

    texts = [block["text"] for block in fold(events)["content"]]
    assert texts == ["abcde", "fghij"]


def test_a_repeated_event_is_dropped_in_small_reads():
    def delta(number):
        place = {"item_id": "m1", "output_index": 0, "content_index": 0}
        event = {"type": "response.output_text.delta", **place, "delta": "a"}
        return frame(event | {"sequence_number": number})

    decoder, events = ResponseDecoder(stream_of("responses"), "responses"), []
    for raw in [delta(1), delta(1), delta(2) + delta(3), delta(3), delta(4) * 2, delta(5)]:
        decoder.feed(raw)
        events += decoder.events

    assert fold(events)["content"] == [{"type": "text", "text": "aaaaa", "citations": None}]


def named(kind, number, **fields):
    event = {"type": kind, "sequence_number": number, **fields}
    return f"event: {kind}\n".encode() + frame(event)


PLACE = {"item_id": "m1", "output_index": 0, "content_index": 0}
TEXT = "response.output_text.delta"


def named_texts(start, count):
    return [
        named(TEXT, number, **PLACE, delta=f"é {number} ") for number in range(start, start + count)
    ]


@for_each("at_once", [1, 3, 40])
@for_each(
    "unusual",
    [
        named(TEXT, 90, **PLACE, delta=""),
        named(TEXT, 90, item_id="m1", delta="of no part"),
        named(TEXT, 90, **PLACE | {"content_index": 1}, delta="of another part"),
        named("response.output_text.annotation.added", 90, **PLACE, annotation={"type": "unusual"}),
        named(TEXT, 90, **PLACE, delta="x").replace(b'"delta"', b'\ndata: "delta"'),
        named(TEXT, 90, type="response.refusal.delta", **PLACE, delta="no"),
        named("response.refusal.delta", 90, type=TEXT, **PLACE, delta="yes"),
        frame({"type": TEXT, "sequence_number": 90, **PLACE, "delta": "without a name"}),
        named(TEXT, 90, **PLACE, delta="x").replace(b"\ndata", b"\nid: 9\ndata"),
        named("ping", 90).replace(b"\ndata", b"\ndata:\ndata"),
        b": a comment\n\n",
        b"event: response.output_text.delta\ndata: {\n\n",
    ],
)
def test_event_names_limit_a_run(unusual, at_once):
    opening = [named("response.created", 0, response={}), named("response.content_part.added", 1)]
    closing = [named("response.completed", 99, response={"output": []})]
    frames = [*opening, *named_texts(2, 9), unusual, *named_texts(20, 12), *closing]
    reads = [b"".join(frames[at : at + at_once]) for at in range(0, len(frames), at_once)]

    events, stream = decode_reads("responses", reads)
    expected, reference = one_by_one("responses", reads)

    assert encode_events(events) == encode_events(expected)
    assert (stream.usage, stream.unknown) == (reference.usage, reference.unknown)


def test_the_deltas_of_a_named_text_are_one_run():
    reads = [b"".join([named("response.created", 0, response={}), *named_texts(1, 30)])]

    events, _ = decode_reads("responses", reads)

    assert [len(event.pieces) for event in events if isinstance(event, BatchedTextDelta)] == [30]


def test_a_repeated_event_is_dropped_in_long_reads():
    frames = [named("response.created", 0, response={}), *named_texts(1, 40)]
    pings = [named("ping", 90), named("ping", 90), named("ping", 91)]
    reads = [b"".join(frames), b"".join([frames[-1], *named_texts(50, 40), *pings]), pings[-1] * 40]

    events, _ = decode_reads("responses", reads)

    pieces = fold(events)["content"][0]["text"].split("é ")[1:]
    assert [int(piece) for piece in pieces] == [*range(1, 41), *range(50, 90)]
    assert events.count({"type": "ping"}) == 2


def test_named_texts_that_are_never_plain_are_decoded():
    unusual = [named(TEXT, number, delta=f"{number} ") for number in range(1, 40)]

    events, _ = decode_reads("responses", [b"".join(unusual[:20]), b"".join(unusual[20:])])

    assert encode_events(events) == encode_events(one_by_one("responses", unusual)[0])


@for_each(
    "response",
    [
        b'{"id":"r","model":"m","instructions":"%s","tools":[{"name":"f"}]}' % ("é" * 500).encode(),
        b'{"id":"r","instructions":"\xff"}',
        b'{"id":"r","\xff":1}',
        b'{"id":"r","instructions":"\\ud83d"}',
        b'{"id":"r","tools":[1,]}',
        b'{"id":"r","top_p":NaN}',
        b'{"id":"r","id":"s"}',
        b'{"id":3}',
        b"[]",
        b"null",
        b"",
    ],
)
@for_each("kind", [b"response.created", b"response.completed", b"ping", b"other"])
def test_skipping_unused_fields_does_not_change_the_result(kind, response):
    first = b'event: response.created\ndata: {"type":"%s","response":%s}\n\n' % (kind, response)
    reads = [first + named(TEXT, 1, **PLACE, delta="a")]

    events, stream = decode_reads("responses", reads)
    expected, reference = one_by_one("responses", reads)

    assert encode_events(events) == encode_events(expected) if events else not expected
    assert (stream.upstream_id, stream.upstream_model, stream.unknown) == (
        reference.upstream_id,
        reference.upstream_model,
        reference.unknown,
    )
