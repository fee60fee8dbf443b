"""Plain reasoning that the client does not see goes back with the call that follows from it."""

from typing import Any

from tests.for_each import for_each
from translator.capabilities import profile_with
from translator.dialect import TranslationTarget
from translator.message_stream.events_to_message import fold
from translator.openai_chat import DIALECT

TOOL = {"name": "look", "input_schema": {"type": "object"}}
REQUEST = {"model": "m", "max_tokens": 9, "tools": [TOOL]}
ASKED = {"role": "user", "content": "Look."}
CALL = {"index": 0, "id": "call_1", "function": {"name": "look", "arguments": "{}"}}


def target(profile: str, recorded: Any = None) -> TranslationTarget:
    return TranslationTarget(
        upstream="u", model="m", profile=profile_with(profile, {}), recorded_calls=recorded
    )


def answered(profile: str, recorded: Any, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the message with a call after reasoning, and the calls to record."""
    built = DIALECT.build_request(REQUEST | {"messages": [ASKED]}, target(profile, recorded))
    stream = DIALECT.stream(built.response_context)
    deltas: list[dict[str, Any]] = [{name: "I must "}, {name: "look."}, {"tool_calls": [CALL]}]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    events = [event for chunk in chunks for event in stream.feed(chunk)] + stream.end()
    return fold(events), stream.call_records


@for_each(
    ("profile", "name"),
    [("deepseek", "reasoning_content"), ("llamacpp", "reasoning_content"), ("vllm", "reasoning")],
)
def test_recorded_reasoning_goes_back_with_its_call(profile, name):
    message, records = answered(profile, {}, name)
    result = {"type": "tool_result", "tool_use_id": message["content"][0]["id"], "content": "x"}
    messages = [
        ASKED,
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [result]},
    ]

    built = DIALECT.build_request(REQUEST | {"messages": messages}, target(profile, records))

    assert [block["type"] for block in message["content"]] == ["tool_use"]
    assert built.body["messages"][1][name] == "I must look."
    assert "hidden_reasoning" not in str(built.body)


@for_each(
    ("profile", "recorded"), [("generic", {}), ("deepseek", None)], ids=["no field", "no record"]
)
def test_nothing_is_recorded_that_no_request_could_send(profile, recorded):
    assert answered(profile, recorded, "reasoning_content")[1] == {}
