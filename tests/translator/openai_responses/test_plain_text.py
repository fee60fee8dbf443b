"""``ResponsesStream.text`` is ``feed`` for a delta that somebody else has read already."""

from hypothesis import example, given
from hypothesis import strategies as st

from .answers import added, arguments, completed, done, reasoning, said, stream, summary, text

CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": ""}
MESSAGE = {"type": "message", "id": "msg_1", "content": []}
CITED = {"type": "url_citation", "url": "https://a.example", "start_index": 0, "end_index": 1}

PIECES = st.builds(
    lambda piece, item, output, part: text(piece, output, part, item_id=item),
    st.sampled_from(["a", "STOP", "ST", "OP"]),
    st.sampled_from(["msg_1", "msg_2"]),
    st.integers(0, 2),
    st.integers(0, 1),
)
OTHERS = st.sampled_from(
    [
        added(0, **MESSAGE),
        added(1, **MESSAGE, status="in_progress"),
        added(1, **CALL),
        added(2, type="reasoning", id="rs_1"),
        arguments("{}", 1),
        summary("hm", 2),
        done(0, **said("a")),
        done(1, **CALL | {"arguments": "{}"}),
        done(2, **reasoning("hm")),
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "aa"},
        {
            "type": "response.output_text.annotation.added",
            "output_index": 0,
            "content_index": 0,
            "annotation": CITED,
        },
        {"type": "ping"},
        completed(said("a")),
    ]
)


def play(moves, stops, *, read):
    """The events of an answer; ``read``: its pieces of text are told by ``text``."""
    machine = stream(stop_sequences=stops)
    told = []
    for move in moves:
        if read and move["type"] == "response.output_text.delta":
            place = (move["item_id"], move["output_index"], move["content_index"])
            told += machine.text(place, move["delta"])
        else:
            told += machine.feed(move)
    told += machine.end()
    return told, machine.usage, machine.notes, machine.stop_reason


A = text("a", item_id="msg_1")


@given(st.lists(PIECES | OTHERS, max_size=14), st.sampled_from([(), ("STOP",)]))
@example([A, A, A, completed(said("aaa"))], ())
@example([added(0, type="reasoning", id="rs_1"), A, done(0, **reasoning("hm")), A, A], ())
@example([A, added(0, **MESSAGE), A, A, done(0, **said("aaa")), A, A], ())
def test_text_that_was_read_is_text_that_is_fed(moves, stops):
    assert play(moves, stops, read=True) == play(moves, stops, read=False)


def test_a_text_that_flows_passes_no_other_part_of_the_translator():
    machine = stream()
    place = ("msg_1", 0, 0)
    machine.text(place, "a")

    assert machine.text(place, "b") == [
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "b"},
        }
    ]
    machine.feed(completed(said("ab")))
    assert machine.text(place, "c") == []
