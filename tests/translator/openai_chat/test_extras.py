"""What Gemini gives with a tool call (``thought_signature``) goes back with it, to Gemini alone."""

from tests.translator.openai_chat.answers import calls, chunk, message, piece, stream
from tests.translator.openai_chat.requests import build
from tests.translator.requests import KEYS, ask, assistant, result, user

EXTRA = {"google": {"thought_signature": "AYe4+/=="}}
CALL = calls(
    piece(index=0, id="call_1", name="f", arguments="{}", extra_content=EXTRA), finish="tool_calls"
)


def calls_sent(content: list, **fields) -> list[dict]:
    history = [user("a"), assistant(*content), user(result("ok", call_id="call_1"))]
    body = build(ask(*history), "gemini", **{"keys": KEYS, **fields}).body
    return next(m for m in body["messages"] if m["role"] == "assistant")["tool_calls"]


def test_it_comes_back_byte_for_byte_to_its_maker():
    content = message(CALL, profile="gemini", keys=KEYS)["content"]

    (sent,) = calls_sent(content)

    assert [block["type"] for block in content] == ["thinking", "tool_use"]
    assert sent["extra_content"] == EXTRA


def test_nobody_else_gets_it_and_no_forger_makes_it():
    thought, call = message(CALL, profile="gemini", keys=KEYS)["content"]
    forged = {**thought, "signature": thought["signature"][:-4] + "AAAA"}

    assert "extra_content" not in calls_sent([forged, call])[0]
    assert "extra_content" not in calls_sent([thought, call], keys=None)[0]
    assert "extra_content" not in calls_sent([{"type": "thinking", "thinking": "x"}, call])[0]


def test_where_nobody_can_carry_it_a_note_tells_once():
    other = piece(index=1, id="call_2", name="f", arguments="{}", extra_content=EXTRA)
    for fields in ({}, {"keys": KEYS, "thinking": "hidden"}):
        heard = stream(profile="gemini", **fields)

        said = [*heard.feed(calls(other), CALL), *heard.end()]

        kinds = [e["content_block"]["type"] for e in said if e["type"] == "content_block_start"]
        assert kinds == ["tool_use", "tool_use"]
        assert [note.fate for note in heard.notes if "signature" in note.reason] == ["dropped"]


def test_calls_without_it_carry_nothing():
    plain = calls(piece(index=0, id="call_1", name="f", arguments="{}"))

    content = message(plain, chunk("tool_calls"), profile="gemini", keys=KEYS)["content"]

    assert [block["type"] for block in content] == ["tool_use"]


def test_the_signature_of_a_text_is_dropped_and_told():
    heard = stream(profile="gemini", keys=KEYS)

    heard.feed(chunk(content="Hello.", extra_content=EXTRA), chunk("stop", extra_content={"x": 1}))

    assert [note.reason for note in heard.notes] == ["a text's thought signature: no call needs it"]
    assert heard.unknown == {"delta.extra_content": 1}
