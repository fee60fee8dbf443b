"""Send requests to a real llama.cpp through the gateway, in each dialect, streaming and not.

The engine answers the same request on its own /v1/messages; the gateway's answers are compared with
that.
"""

import json
import urllib.request
from typing import Any

import pytest

from tests.fakes.upstreams.grammar import faults_of_bytes, read_frames
from translator.message_stream.events_to_message import fold

DIALECTS = ("anthropic", "chat", "responses")
FIELDS = {
    "get_weather": ("city",),
    "Bash": ("command", "description"),
    "Read": ("file_path",),
    "Write": ("file_path", "content"),
}
TOOLS = [
    {
        "name": name,
        "description": name,
        "input_schema": {
            "type": "object",
            "properties": {field: {"type": "string"} for field in fields},
            "required": list(fields),
        },
    }
    for name, fields in FIELDS.items()
]
REQUESTS: dict[str, dict[str, Any]] = {
    "text": {"word": "zhello"},
    "JSON": {"word": "zjson"},
    "two calls": {"word": "ztwo", "tools": TOOLS},
    "text and a call": {"word": "zread", "tools": TOOLS},
    "a call with text in its arguments": {"word": "zwrite", "tools": TOOLS},
    "thinking, text and a call": {
        "word": "ztool",
        "tools": TOOLS,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 2000,
    },
    "cut at the limit": {"word": "zlong", "max_tokens": 20},
    "a stop sequence": {"word": "zstop", "stop_sequences": ["STOPHERE"]},
}


def body(model: str, name: str, **more: Any) -> dict[str, Any]:
    fields = {"max_tokens": 200, "temperature": 0, **REQUESTS[name], **more}
    messages = [{"role": "user", "content": fields.pop("word")}]
    return {"model": model, "messages": messages, **fields}


def engine_answer(url: str, request: dict[str, Any]) -> dict[str, Any]:
    call = urllib.request.Request(  # noqa: S310 - loopback
        f"{url}/v1/messages",
        json.dumps(request).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(call, timeout=60) as response:  # noqa: S310 - loopback
        answer: dict[str, Any] = json.load(response)
        return answer


def gateway_answer(gateway, request: dict[str, Any]) -> dict[str, Any]:
    """Return the gateway's message; a stream is checked and folded."""
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    reply = gateway.request("POST", "/v1/messages", json.dumps(request).encode(), headers)
    assert reply.status == 200, reply.body
    if not request.get("stream"):
        answer: dict[str, Any] = json.loads(reply.body)
        return answer
    # Anthropic upstreams may start the arguments of a call without an empty delta.
    faults = [f for f in faults_of_bytes(reply.body) if not f.startswith("I5: a tool block's fi")]
    assert faults == []
    return fold([frame.body for frame in read_frames(reply.body)[0]])


def content(message: dict[str, Any]) -> list[tuple]:
    """Return the content without ids and signatures, which differ in each answer."""
    shown = {"text": ("text",), "thinking": ("thinking",), "tool_use": ("name", "input")}
    return [(b["type"], *(b[field] for field in shown[b["type"]])) for b in message["content"]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", REQUESTS)
def test_the_gateway_s_answer_is_the_engine_s(engine, engine_gateway, name, dialect, stream):
    direct = engine_answer(engine, body("tiny", name))

    answer = gateway_answer(engine_gateway, body(dialect, name, stream=stream))

    assert content(answer) == content(direct)
    assert answer["usage"]["output_tokens"] > 0
    if name != "a stop sequence":  # the engine reports it as the end of the turn
        assert answer["stop_reason"] == direct["stop_reason"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_text_after_thinking_is_sent_at_once(engine_gateway, dialect):
    """The engine ends its thinking block only at the end of the response."""
    request = body(dialect, "thinking, text and a call", stream=True)
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}

    reply = engine_gateway.request("POST", "/v1/messages", json.dumps(request).encode(), headers)

    frames = [frame.body for frame in read_frames(reply.body)[0]]
    texts = [f["delta"]["text"] for f in frames if f.get("delta", {}).get("type") == "text_delta"]
    assert len(texts) > 3, "all text came in one piece, so it had waited"
    assert "".join(texts) == "I look it up.\n"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_tool_loop_ends_with_the_answer_to_the_tool_s_result(engine_gateway, dialect):
    first = gateway_answer(engine_gateway, body(dialect, "thinking, text and a call"))
    (call,) = [block for block in first["content"] if block["type"] == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "Sunny."}

    request = body(dialect, "thinking, text and a call")
    request["messages"] += [
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result]},
    ]
    second = gateway_answer(engine_gateway, request)

    assert [block["text"] for block in second["content"] if block["type"] == "text"] == [
        "The tool has answered; I am done."
    ]
    assert second["stop_reason"] == "end_turn"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_prompt_beyond_the_context_window_is_named_as_such(engine_gateway, dialect):
    request = body(dialect, "text")
    request["messages"][0]["content"] = "word " * 100_000
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}

    reply = engine_gateway.request("POST", "/v1/messages", json.dumps(request).encode(), headers)

    assert reply.status == 400
    assert json.loads(reply.body)["error"]["type"] == "invalid_request_error"
