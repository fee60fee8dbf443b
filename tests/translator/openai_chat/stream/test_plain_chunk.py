"""``plain_text`` returns the text of a chunk that carries nothing else."""

import pytest

from translator.openai_chat.stream.plain_chunk import plain_text

CALL = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}


def chunk(delta, reason=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


@pytest.mark.parametrize(
    "event",
    [
        chunk({"content": ""}),
        chunk({"content": "a"}, "stop"),
        chunk({"content": "a", "tool_calls": [CALL]}),
        chunk({"content": ["a"]}),
        chunk({"role": "assistant"}),
        chunk({"content": "a"}) | {"usage": {"prompt_tokens": 1}},
        chunk({"content": "a"}) | {"citations": ["https://a.example"]},
        {"choices": [{"index": 1, "delta": {"content": "a"}}]},
        {"choices": [{"delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]},
        chunk({"content": "a"}) | {"object": "error", "message": "no more"},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [], "error": {"message": "no more"}},
        {},
    ],
)
def test_a_chunk_that_carries_more_than_text_is_not_plain(event):
    assert plain_text(event) == ""


@pytest.mark.parametrize(
    "event",
    [
        chunk({"content": "a"}),
        chunk({"content": "a", "role": "assistant"}),
        chunk({"content": "a", "refusal": None, "tool_calls": None}) | {"obfuscation": "x" * 9},
    ],
)
def test_padding_and_null_fields_do_not_matter(event):
    assert plain_text(event) == "a"
