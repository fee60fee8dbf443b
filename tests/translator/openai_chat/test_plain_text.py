"""``ChatStream.text`` is ``feed`` for a chunk that somebody else has read already."""

from hypothesis import example, given
from hypothesis import strategies as st

from translator.dialect import AnswerContext, Target
from translator.openai_chat.stream import ChatStream
from translator.profiles import Profile

USAGE = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
CALL = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}
FAILED = {"choices": [], "error": {"message": "no more"}}
BEGUN = {"tool_calls": [{"index": 1, "id": "call_2", "function": {"name": "g", "arguments": "{"}}]}
ENDED = {"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]}
NAMED = {"tool_calls": [{"index": 2, "id": "call_3", "function": {"name": "h"}}]}
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
        BEGUN,
        ENDED,
        NAMED,
        {"content": "b"},
        "finish",
        USAGE,
        FAILED,
    ]
)


def chunk(delta, reason=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def play(moves, stops, tags, *, read=False, together=False):
    """The events of an answer.

    ``read``: its pieces of text are told by ``text``; ``together``: whatever is fed between two of
    these is fed at once.
    """
    target = Target(profile=Profile(think_tags=tags))
    stream = ChatStream(
        AnswerContext(message_id="msg_1", model="m", target=target, stop_sequences=stops)
    )
    said, waiting = [], []
    for move in moves:
        if read and isinstance(move, str) and move != "finish":
            if waiting:  # else it flows
                said += stream.feed(*waiting)
            said += stream.text(move)
            waiting = []
            continue
        waiting.append(chunk_of(move))
        if not together:
            said += stream.feed(waiting.pop())
    said += stream.feed(*waiting) + stream.end()
    return said, stream.usage, stream.notes, stream.stop_reason


def chunk_of(move):
    if isinstance(move, str):
        return chunk({}, "stop") if move == "finish" else chunk({"content": move})
    return move if "choices" in move else chunk(move)


@given(st.lists(MOVES, max_size=12), st.sampled_from([(), ("STOP",)]), st.booleans())
@example(["a", "a"], (), False)
@example(["a", "a"], (), True)
def test_text_that_was_read_is_text_that_is_fed(moves, stops, tags):
    assert play(moves, stops, tags, read=True) == play(moves, stops, tags)


@given(st.lists(MOVES, max_size=12), st.sampled_from([(), ("STOP",)]), st.booleans())
@example([BEGUN, {"content": "b"}, ENDED, NAMED, "a"], (), False)
@example(["a", FAILED, "b"], (), False)
@example(["STOP", "b"], ("STOP",), False)
def test_chunks_that_are_fed_together_say_what_they_say_one_by_one(moves, stops, tags):
    alone = play(moves, stops, tags)

    assert play(moves, stops, tags, together=True) == alone
    assert play(moves, stops, tags, together=True, read=True) == alone


def test_a_part_without_text_says_nothing_and_a_refusal_may_hold_a_stop_sequence():
    context = AnswerContext(message_id="msg_1", model="m", stop_sequences=("STOP",))
    stream = ChatStream(context)

    begun = stream.feed(chunk({"content": [{"type": "text"}]}))
    ended = stream.feed(chunk({"refusal": "No STOP of it"}))

    assert [event["type"] for event in begun] == ["message_start"]
    assert ended[1]["delta"]["text"] == "No "
    assert stream.stop_reason == "stop_sequence"
