"""Stored streams are translated again."""

import json
from typing import Any

from proxy.ledger.transcripts import stream_replay
from tests.proxy.ledger.factories import body

TARGET = {"upstream": "openai", "model": "gpt-5.2", "dialect": "chat", "profile": "generic"}


def chunk(**delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return (
        b"data: " + json.dumps({"id": "c1", "model": "m", "choices": [choice]}).encode() + b"\n\n"
    )


def test_replay_returns_the_stored_response() -> None:
    request = json.loads(body("Answer.", stream=True))
    reads = [(1.0, chunk(content="Yes.")), (2.0, b'data: {"choices":[{"index":0,"delta":{},')]
    reads.append((3.0, b'"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'))

    replayed = stream_replay.replay(request, TARGET, reads, message_id="msg_7")

    assert replayed.answer is not None
    assert replayed.answer["id"] == "msg_7"
    assert replayed.answer["stop_reason"] == "end_turn"
    assert replayed.events[-1]["type"] == "message_stop"
    assert replayed.body["model"] == "gpt-5.2"


def test_a_json_response_is_replayed() -> None:
    request = json.loads(body("Answer."))
    message = {"role": "assistant", "content": "Yes."}
    response = {"id": "c1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    replayed = stream_replay.replay(request, TARGET, [(1.0, json.dumps(response).encode())])

    assert replayed.answer is not None
    assert replayed.answer["content"] == [{"type": "text", "text": "Yes.", "citations": None}]
