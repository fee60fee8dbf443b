"""``ChatStream.text`` is ``feed`` for a chunk that somebody else has read already."""

from hypothesis import example, given
from hypothesis import strategies as st

from translator.dialect import AnswerContext, Target
from translator.openai_chat.stream import ChatStream
from translator.profiles import Profile

USAGE = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
CALL = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}
MOVES = st.sampled_from(
    [
        "a",
        "STOP",
        "ST",
        "OP",
        "<think>",
        "</think>",
        {"reasoning_content": "hm"},
        {"tool_calls": [CALL]},
        "finish",
        USAGE,
    ]
)


def chunk(delta, reason=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def play(moves, stops, tags, *, read):
    """The events of an answer; ``read``: its pieces of text are told by ``text``."""
    target = Target(profile=Profile(think_tags=tags))
    stream = ChatStream(
        AnswerContext(message_id="msg_1", model="m", target=target, stop_sequences=stops)
    )
    said = []
    for move in moves:
        if move == "finish":
            said += stream.feed(chunk({}, "stop"))
        elif isinstance(move, str):
            said += stream.text(move) if read else stream.feed(chunk({"content": move}))
        else:
            said += stream.feed(move if "choices" in move else chunk(move))
    return said + stream.end(), stream.usage, stream.notes, stream.stop_reason


@given(st.lists(MOVES, max_size=12), st.sampled_from([(), ("STOP",)]), st.booleans())
@example(["a", "a"], (), True)
def test_text_that_was_read_is_text_that_is_fed(moves, stops, tags):
    assert play(moves, stops, tags, read=True) == play(moves, stops, tags, read=False)


def test_a_part_without_text_says_nothing_and_a_refusal_may_hold_a_stop_sequence():
    context = AnswerContext(message_id="msg_1", model="m", stop_sequences=("STOP",))
    stream = ChatStream(context)

    begun = stream.feed(chunk({"content": [{"type": "text"}]}))
    ended = stream.feed(chunk({"refusal": "No STOP of it"}))

    assert [event["type"] for event in begun] == ["message_start"]
    assert ended[1]["delta"]["text"] == "No "
    assert stream.stop_reason == "stop_sequence"
