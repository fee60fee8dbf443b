"""Reasoning returns to the upstream that created it, also after a switch of upstreams."""

import json
from typing import Any

from tests.fakes.upstreams.script_steps import LAST_CHUNK, Script
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message
from tests.proxy.gateway.http_client import GatewayClient

TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}


def reasoning_script(number: int, *, call: bool) -> Script:
    """Return a Responses script: encrypted reasoning, then a function call or text."""
    place = {"output_index": 0}
    thought = {
        "type": "reasoning", "id": f"rs_{number}", "encrypted_content": f"gAAA-{number}-\u00e9",
        "summary": [{"type": "summary_text", "text": f"Thought {number}."}],
    }  # fmt: skip
    output: dict[str, Any] = {
        "type": "message", "id": f"m_{number}", "role": "assistant",
        "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
    }  # fmt: skip
    if call:
        output = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}",
                "name": "f", "arguments": "{}"}  # fmt: skip
    ended = {
        "id": f"resp_{number}", "model": "m", "status": "completed", "output": [thought, output],
        "usage": {"input_tokens": 9, "output_tokens": 4},
    }  # fmt: skip
    events = [
        {"type": "response.created", "response": {"id": f"resp_{number}", "model": "m"}},
        {"type": "response.output_item.done", **place, "item": thought},
        {"type": "response.output_item.done", "output_index": 1, "item": output},
        {"type": "response.completed", "response": ended},
    ]
    return upstream_scripts.pieces(
        [upstream_scripts.sse(each, each["type"]) for each in events], LAST_CHUNK
    )


def thoughts_sent(request: ReceivedRequest) -> list[tuple[str, str, str]]:
    return [
        (item["id"], item["encrypted_content"], item["summary"][0]["text"])
        for item in request.json["input"]
        if item["type"] == "reasoning"
    ]


def turn(gateway: GatewayClient, model: str, history: list[dict[str, Any]]) -> None:
    """Send one request; add its message and the results of its tool calls to the history."""
    reply = gateway.post(
        message(model, messages=history, tools=[TOOL])
        | {"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 4096}
    )
    assert reply.status == 200, reply.body
    content = reply.json["content"]
    history.append({"role": "assistant", "content": content})
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": "ok"} for id_ in calls]
    history.append({"role": "user", "content": results or "Go on."})


def test_reasoning_returns_only_to_its_upstream_and_with_a_valid_signature(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    add_route("loop-other", add_upstream("loop-other", "responses", scripted.base_url, "openai"))
    reload()
    scripted.on("responses-loop", *(reasoning_script(n, call=n < 3) for n in (1, 2, 3, 4)))
    scripted.on("loop-other", reasoning_script(9, call=False))
    scripted.on("chat-loop", upstream_scripts.chat())
    history: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    expected = [(f"rs_{n}", f"gAAA-{n}-\u00e9", f"Thought {n}.") for n in (1, 2, 3)]

    for _ in range(3):
        turn(gateway, "responses-loop", history)

    first, second, third = scripted.requests_for("responses-loop")
    assert [thoughts_sent(each) for each in (first, second, third)] == [
        [],
        expected[:1],
        expected[:2],
    ]
    for request in (second, third):  # each directly before its function call
        kinds = [item["type"] for item in request.json["input"]]
        assert all(kinds[n + 1] == "function_call" for n, k in enumerate(kinds) if k == "reasoning")

    turn(gateway, "loop-other", history)  # another upstream receives none of it
    turn(gateway, "chat-loop", history)  # another dialect
    assert thoughts_sent(scripted.requests_for("loop-other")[0]) == []
    assert "gAAA" not in json.dumps(scripted.requests_for("chat-loop")[0].json)

    turn(gateway, "responses-loop", history)  # the first upstream again receives only its own three
    assert thoughts_sent(scripted.requests_for("responses-loop")[3]) == expected

    signature = history[1]["content"][0]["signature"]
    history[1]["content"][0]["signature"] = signature[:-6] + "AAAAAA"
    history[3]["content"][0]["signature"] = signature[:40]
    turn(gateway, "responses-loop", history)
    assert thoughts_sent(scripted.requests_for("responses-loop")[4])[:1] == expected[2:]
