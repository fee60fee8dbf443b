import pytest

from translator.anthropic.fold import fold
from translator.anthropic_upstream.whole import events_of


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "x", "citations": [{"url": "1"}]},
        {"type": "text", "text": "x", "citations": None},
        {"type": "text", "text": ""},
        {"type": "thinking", "thinking": "why", "signature": "s"},
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        {"type": "server_tool_use", "id": "t", "name": "f", "input": {}},
        {"type": "redacted_thinking", "data": "x"},
    ],
)
def test_a_block_folds_back_into_itself(block):
    message = {
        "id": "m",
        "type": "message",
        "content": [block],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {"output_tokens": 1},
    }

    assert fold(events_of(message)) == message


def test_only_messages_have_a_stream():
    with pytest.raises(ValueError, match="completion"):
        events_of({"type": "completion"})
