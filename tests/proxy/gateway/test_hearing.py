"""Hearing many deltas at once must tell the client exactly what one at a time would."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.decoding import decode_event
from proxy.gateway.dialects import DIALECTS
from proxy.gateway.frames import TextRun, frames
from proxy.gateway.hearing import Hearing
from translator.anthropic.fold import fold
from translator.dialect import AnswerContext
from translator.errors import BadUpstream
from translator.sse import DONE, SSEDecoder

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
RECORDINGS = sorted(
    [*CORPUS.glob("chat-stream/*.sse"), *CORPUS.glob("responses-stream/*.sse")]
) or [
    pytest.param(None, marks=pytest.mark.skip(reason=f"NO CORPUS at {CORPUS}: nothing is compared"))
]
USUAL = {"id": "c1", "object": "chat.completion.chunk", "model": "m"}


def stream_of(dialect, **context):
    return DIALECTS[dialect].stream(AnswerContext(message_id="msg_1", model="m", **context))


def one_by_one(dialect, reads, **context):
    """The events of an answer whose every event goes through the translator alone."""
    stream, decoder, said = stream_of(dialect, **context), SSEDecoder(), []
    try:
        for raw in [*reads, b""]:
            for name, text in decoder.feed(raw) if raw else decoder.end():
                said += (
                    stream.end() if text.strip() == DONE else stream.feed(decode_event(name, text))
                )
                if stream.finished:
                    return said, stream
    except BadUpstream:
        return said, stream
    return said + stream.end(), stream


def heard(dialect, reads, *, flows=False, **context):
    """``flows``: as the pump hears it that waits for each of these reads."""
    stream = stream_of(dialect, **context)
    hearing, said = Hearing(stream, dialect), []
    try:
        for raw in [*reads, b""]:
            if not flows or not hearing.flow(raw):
                hearing.feed(raw)
            said += hearing.events
            if stream.finished:
                break
    except BadUpstream:
        said += hearing.events
    return said, stream


def chunk(**delta):
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return frame({**USUAL, "choices": [choice]})


def frame(event):
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


@pytest.mark.parametrize("size", [1_000, 65_536])
@pytest.mark.parametrize(
    "recording", RECORDINGS, ids=lambda path: path.stem if path else "no corpus"
)
def test_a_recording_sounds_the_same_in_every_byte(recording, size):
    dialect = recording.parent.name.removesuffix("-stream")
    whole = recording.read_bytes()
    reads = [whole[at : at + size] for at in range(0, len(whole), size)]

    said, stream = heard(dialect, reads)
    alone, general = one_by_one(dialect, reads)

    assert frames(said) == frames(alone)
    assert fold(said) == fold(alone)
    assert (stream.usage, stream.notes, stream.unknown) == (
        general.usage,
        general.notes,
        general.unknown,
    )
    assert stream.upstream_id == general.upstream_id


@pytest.mark.parametrize("together", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "recording", RECORDINGS, ids=lambda path: path.stem if path else "no corpus"
)
def test_a_recording_that_takes_its_time_sounds_the_same(recording, together):
    dialect = recording.parent.name.removesuffix("-stream")
    events = recording.read_bytes().replace(b"\r\n", b"\n").split(b"\n\n")
    reads = [
        b"".join(event + b"\n\n" for event in events[at : at + together])
        for at in range(0, len(events), together)
    ]

    said, stream = heard(dialect, reads, flows=True)
    alone, general = one_by_one(dialect, reads)

    assert frames(said) == frames(alone)
    assert fold(said) == fold(alone)
    assert (stream.usage, stream.notes, stream.unknown) == (
        general.usage,
        general.notes,
        general.unknown,
    )


def test_a_run_of_text_goes_through_the_translator_once():
    pieces = [f"piece {number} é" for number in range(20)]

    said, _ = heard("chat", [b"".join(chunk(content=piece) for piece in pieces)])

    runs = [event for event in said if isinstance(event, TextRun)]
    assert [run.pieces for run in runs] == [pieces[1:]]  # the first one opens the block
    assert runs[0]["delta"]["text"] == "".join(pieces[1:])


@pytest.mark.parametrize(
    "odd",
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
def test_what_is_not_plain_goes_the_general_way_in_its_place(odd):
    text = b"".join(chunk(content=piece) for piece in "abcdef")
    reads = [text + odd + text + frame({**USUAL, "choices": [{"finish_reason": "stop"}]})]

    said, stream = heard("chat", reads)
    alone, general = one_by_one("chat", reads)

    assert frames(said) == frames(alone)
    assert (stream.usage, stream.unknown) == (general.usage, general.unknown)


@given(st.lists(st.text(max_size=5), min_size=1, max_size=30), st.sampled_from(["", "a", "ab"]))
def test_a_stop_sequence_is_found_wherever_the_pieces_were_cut(pieces, stop):
    try:
        reads = [b"".join(chunk(content=piece) for piece in pieces)]
    except UnicodeEncodeError:
        return  # half a surrogate pair: no server can send it unescaped
    context = {"stop_sequences": (stop,)} if stop else {}

    said, stream = heard("chat", reads, **context)
    alone, general = one_by_one("chat", reads, **context)

    assert fold(said).get("content") == fold(alone).get("content")
    assert stream.stop_reason == general.stop_reason


def test_text_of_another_part_is_not_joined():
    def delta(part, text):
        place = {"item_id": "m1", "output_index": 0, "content_index": part}
        return frame({"type": "response.output_text.delta", **place, "delta": text})

    reads = [
        b"".join(
            delta(part, text) for part, text in zip([0] * 5 + [1] * 5, "abcdefghij", strict=True)
        )
    ]

    said, _ = heard("responses", reads)

    texts = [block["text"] for block in fold(said)["content"]]
    assert texts == ["abcde", "fghij"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        chunk(content="x")[:-1],
        chunk(content=""),
        chunk(content="x", audio={}),
        chunk(content="x") + chunk(content="") + chunk(content="y"),
        chunk(content="x") + b"data: [DONE]\n\n",
        chunk(content="x") + b": a comment\n\n" + chunk(content="y"),
        b"".join(chunk(content="many") for _ in range(200)),
        b"event: message\n" + chunk(content="x"),
        chunk(content="x").replace(b"\n\n", b"\r\n\r\n"),
    ],
)
def test_what_is_more_than_a_few_plain_deltas_does_not_flow(raw):
    stream = stream_of("chat")
    hearing = Hearing(stream, "chat")
    hearing.feed(chunk(role="assistant", content="begun"))

    assert not hearing.flow(raw)
    assert hearing.flow(chunk(content="a"))
    assert hearing.flow(chunk(content="b") * 2)


def test_nothing_flows_before_a_text_begins_or_in_the_middle_of_an_event():
    hearing = Hearing(stream_of("chat"), "chat")

    assert not hearing.flow(chunk(content="a"))
    hearing.feed(chunk(content="a"))
    assert hearing.flow(chunk(content="b"))
    hearing.feed(b"data: ")
    assert not hearing.flow(chunk(content="c"))


def test_what_a_server_repeats_does_not_flow_twice():
    def delta(number):
        place = {"item_id": "m1", "output_index": 0, "content_index": 0}
        told = {"type": "response.output_text.delta", **place, "delta": "a"}
        return frame(told | {"sequence_number": number})

    hearing, said = Hearing(stream_of("responses"), "responses"), []
    for raw in [delta(1), delta(1), delta(2) + delta(3), delta(3), delta(4) * 2, delta(5)]:
        if not hearing.flow(raw):
            hearing.feed(raw)
        said += hearing.events

    assert fold(said)["content"] == [{"type": "text", "text": "aaaaa"}]


def named(kind, number, **fields):
    event = {"type": kind, "sequence_number": number, **fields}
    return f"event: {kind}\n".encode() + frame(event)


PLACE = {"item_id": "m1", "output_index": 0, "content_index": 0}
TEXT = "response.output_text.delta"


def named_texts(start, count):
    return [
        named(TEXT, number, **PLACE, delta=f"é {number} ") for number in range(start, start + count)
    ]


@pytest.mark.parametrize("together", [1, 3, 40])
@pytest.mark.parametrize(
    "odd",
    [
        named(TEXT, 90, **PLACE, delta=""),
        named(TEXT, 90, item_id="m1", delta="of no part"),
        named(TEXT, 90, **PLACE | {"content_index": 1}, delta="of another part"),
        named("response.output_text.annotation.added", 90, **PLACE, annotation={"type": "odd"}),
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
def test_names_tell_where_a_run_begins_and_ends(odd, together):
    opening = [named("response.created", 0, response={}), named("response.content_part.added", 1)]
    closing = [named("response.completed", 99, response={"output": []})]
    told = [*opening, *named_texts(2, 9), odd, *named_texts(20, 12), *closing]
    reads = [b"".join(told[at : at + together]) for at in range(0, len(told), together)]

    said, stream = heard("responses", reads, flows=True)
    alone, general = one_by_one("responses", reads)

    assert frames(said) == frames(alone)
    assert (stream.usage, stream.unknown) == (general.usage, general.unknown)


def test_a_named_text_is_one_run_from_its_first_delta_to_its_last():
    reads = [b"".join([named("response.created", 0, response={}), *named_texts(1, 30)])]

    said, _ = heard("responses", reads)

    assert [len(event.pieces) for event in said if isinstance(event, TextRun)] == [30]


def test_what_a_server_repeats_is_heard_once_in_long_reads_too():
    told = [named("response.created", 0, response={}), *named_texts(1, 40)]
    pings = [named("ping", 90), named("ping", 90), named("ping", 91)]
    reads = [b"".join(told), b"".join([told[-1], *named_texts(50, 40), *pings]), pings[-1] * 40]

    said, _ = heard("responses", reads)

    pieces = fold(said)["content"][0]["text"].split("é ")[1:]
    assert [int(piece) for piece in pieces] == [*range(1, 41), *range(50, 90)]
    assert said.count({"type": "ping"}) == 2


def test_a_server_whose_named_texts_are_never_plain_is_heard_all_the_same():
    odd = [named(TEXT, number, delta=f"{number} ") for number in range(1, 40)]

    said, _ = heard("responses", [b"".join(odd[:20]), b"".join(odd[20:])])

    assert frames(said) == frames(one_by_one("responses", odd)[0])


@pytest.mark.parametrize(
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
@pytest.mark.parametrize("kind", [b"response.created", b"response.completed", b"ping", b"other"])
def test_a_response_is_heard_as_if_all_of_it_were_read(kind, response):
    told = b'event: response.created\ndata: {"type":"%s","response":%s}\n\n' % (kind, response)
    reads = [told + named(TEXT, 1, **PLACE, delta="a")]

    said, stream = heard("responses", reads)
    alone, general = one_by_one("responses", reads)

    assert frames(said) == frames(alone) if said else not alone
    assert (stream.upstream_id, stream.upstream_model, stream.unknown) == (
        general.upstream_id,
        general.upstream_model,
        general.unknown,
    )
