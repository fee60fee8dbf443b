"""Deltas that differ in nothing but their text are decoded as texts, and never as anything else."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.gateway.frames import TextRun, frames
from proxy.gateway.plain import LAST, Mould
from translator.anthropic.fold import fold

from .test_hearing import USUAL, heard, one_by_one

HEAD = b"data: "
LONG = {**USUAL, "id": "c" * 400}  # so that few frames are many bytes
END = HEAD + msgspec.json.encode({**LONG, "choices": [{"delta": {}, "finish_reason": "stop"}]})

BODIES = st.lists(
    st.sampled_from([b"a", b'"', b"\\", b",", b"n", b"u00e9", b"\xc3\xa9", b"\xff", b"\n", b"{}"]),
    max_size=6,
).map(b"".join)


def framed(body, **around):
    """A frame whose text is these bytes, whatever they are."""
    choice = {"index": 0, "delta": {"content": "TEXT"}, "finish_reason": None}
    line = msgspec.json.encode({**LONG, "choices": [choice], **around})
    return HEAD + line.replace(b"TEXT", body) + b"\n\n"


def frames_of(whole):
    """As the decoder cuts them; one that is not complete is none."""
    return whole.split(b"\n\n")[:-1]


def mould_of(frame):
    return Mould.of(frame.removesuffix(b"\n\n"))


MOULD = mould_of(framed(b"a"))


@given(st.lists(BODIES, min_size=1, max_size=12))
@example([b'a","b'] * 6)
@example([b"a", b"b\\", b',"c', b"d", b"e", b"f"])
@example([b"a", b"b\\\\", b"c", b"d", b"e", b"f"])
@example([b"a", b'b\\"', b'\\",', b"d", b'"', b"f"])
@example([b"a", b'"},"finish_reason":"stop"}],"x":[{"y":{"content":"b', b"c", b"d", b"e", b"f"])
@example([b"a", b"\\ud83d", b"\\ude00", b"d", b"e", b"f"])
def test_whatever_bytes_stand_for_the_text_the_client_hears_what_one_frame_at_a_time_says(bodies):
    reads = [b"".join(map(framed, [b"first", b"second", *bodies, b"last"])) + END]

    said, stream = heard("chat", reads)
    alone, general = heard("chat", [*(each + b"\n\n" for each in frames_of(reads[0])), END])

    assert frames(said) == frames(alone)
    assert fold(said) == fold(alone)
    assert (stream.stop_reason, stream.unknown) == (general.stop_reason, general.unknown)


@given(st.lists(st.text(min_size=1, max_size=5), min_size=LAST + 1, max_size=20), st.data())
def test_texts_come_out_of_their_mould_wherever_the_read_ends(texts, data):
    try:
        bodies = [msgspec.json.encode(text)[1:-1] for text in texts]
    except UnicodeEncodeError:
        return  # half a surrogate pair: no server can send it unescaped
    whole = [*frames_of(b"".join(map(framed, bodies))), END]
    cut = data.draw(st.integers(0, len(whole)))

    assert MOULD.texts(whole[:cut]) == texts[:cut]
    assert MOULD.texts(whole) == texts


@pytest.mark.parametrize(
    "body", [b"", b'"', b"\\", b"a\\", b'a","b', b"\xff", b"\n", b"a\\x", b"\\ud83d"]
)
def test_nothing_comes_out_where_one_of_the_texts_is_none(body):
    assert MOULD.texts([framed(text)[:-2] for text in (b"a", b"b", body, b"c")]) == []


@pytest.mark.parametrize(
    "other", [framed(b"b", created=2), framed(b"b").replace(b'"index":0', b'"index":1')]
)
def test_a_frame_of_another_mould_in_between_leaves_all_of_it_to_the_shapes(other):
    assert MOULD.texts(frames_of(framed(b"a") + other + framed(b"c"))) == []


@pytest.mark.parametrize(
    "frame",
    [
        framed(b"a\\nb"),  # the place is looked for where nothing is escaped
        framed(b""),
        framed(b"a", usage={"prompt_tokens": 1}),
        framed(b"a", choices=[]),
        framed(b"a").replace(b',"object"', b'\n,"object"'),  # two lines, and one is no data
        HEAD + b"[DONE]\n\n",
        *(
            HEAD + b'{"content":"a","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text
            for text in (b"a", b"a.", b"b")
        ),
        HEAD + b'{"x":"\\"content":"a","choices":[{"index":0,"delta":{"content":"b"}}]}\n\n',
    ],
)
def test_what_is_not_plain_beyond_doubt_makes_no_mould(frame):
    assert mould_of(frame) is None


def test_spaces_and_the_order_of_fields_make_no_difference():
    frame = HEAD + b'{"choices": [{"delta": {"role": "assistant", "content": "a"}}], "id": "c"}\n\n'

    assert mould_of(frame).texts(frames_of(frame * 3)) == ["a", "a", "a"]


def test_a_run_of_one_mould_reaches_the_translator_as_one_and_the_next_read_knows_it():
    bodies = [b"%d" % number for number in range(40)]
    reads = [b"".join(map(framed, bodies[at : at + 10])) for at in range(0, 40, 10)]

    said, _ = heard("chat", [*reads, END + b"\n\n" + HEAD + b"[DONE]\n\n"])

    runs = [event.pieces for event in said if isinstance(event, TextRun)]
    assert [len(run) for run in runs] == [9, 10, 10, 10]


def test_a_stream_whose_frames_all_differ_is_heard_all_the_same():
    bodies = [b"%d" % number for number in range(200)]
    odd = [framed(body, created=number) for number, body in enumerate(bodies)]
    reads = [b"".join(odd[at : at + 10]) for at in range(0, 200, 10)]

    said, _ = heard("chat", [*reads, END + b"\n\n"])
    alone, _ = one_by_one("chat", [*reads, END + b"\n\n"])

    assert frames(said) == frames(alone)
