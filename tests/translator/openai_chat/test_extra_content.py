"""Extra content of a Gemini tool call (``thought_signature``) returns with it, to Gemini only."""

from tests.fakes.anthropic_requests import KEYS, assistant, make_request, result, user
from tests.translator.openai_chat.requests import build

from .responses import calls, chunk, message, piece, stream

EXTRA = {"google": {"thought_signature": "AYe4+/=="}}
CALL = calls(
    piece(index=0, id="call_1", name="f", arguments="{}", extra_content=EXTRA), finish="tool_calls"
)


def calls_sent(content: list, **fields) -> list[dict]:
    history = [user("a"), assistant(*content), user(result("ok", call_id="call_1"))]
    body = build(make_request(*history), "gemini", **{"keys": KEYS, **fields}).body
    return next(m for m in body["messages"] if m["role"] == "assistant")["tool_calls"]


def test_extra_content_returns_unchanged_to_its_vendor():
    content = message(CALL, profile="gemini", keys=KEYS)["content"]

    (sent,) = calls_sent(content)

    assert [block["type"] for block in content] == ["thinking", "tool_use"]
    assert sent["extra_content"] == EXTRA


def test_extra_content_goes_to_no_other_vendor_and_needs_a_valid_signature():
    thought, call = message(CALL, profile="gemini", keys=KEYS)["content"]
    forged = {**thought, "signature": thought["signature"][:-4] + "AAAA"}

    assert "extra_content" not in calls_sent([forged, call])[0]
    assert "extra_content" not in calls_sent([thought, call], keys=None)[0]
    assert "extra_content" not in calls_sent([{"type": "thinking", "thinking": "x"}, call])[0]


def test_extra_content_without_signing_keys_is_noted_once():
    other = piece(index=1, id="call_2", name="f", arguments="{}", extra_content=EXTRA)
    for fields in ({}, {"keys": KEYS, "thinking": "hidden"}):
        decoder = stream(profile="gemini", **fields)

        events_emitted = [*decoder.feed(calls(other), CALL), *decoder.end()]

        kinds = [
            e["content_block"]["type"] for e in events_emitted if e["type"] == "content_block_start"
        ]
        assert kinds == ["tool_use", "tool_use"]
        assert [note.fate for note in decoder.notes if "signature" in note.reason] == ["dropped"]


def test_calls_without_extra_content_have_no_carrier():
    plain = calls(piece(index=0, id="call_1", name="f", arguments="{}"))

    content = message(plain, chunk("tool_calls"), profile="gemini", keys=KEYS)["content"]

    assert [block["type"] for block in content] == ["tool_use"]


def test_the_signature_of_a_text_is_dropped_with_a_note():
    decoder = stream(profile="gemini", keys=KEYS)

    decoder.feed(
        chunk(content="Hello.", extra_content=EXTRA), chunk("stop", extra_content={"x": 1})
    )

    assert [note.reason for note in decoder.notes] == ["a thought signature of text, not of a call"]
    assert decoder.unknown == {"delta.extra_content": 1}
