"""Reasoning comes back to its maker, through a tool loop, a switch of upstreams and a forger."""

import json
from typing import Any

from tests.fakes.steps import LAST_CHUNK, Script
from tests.fakes.upstream import Asked, ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import add_route, add_upstream, message

TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}


def reasoned(number: int, *, call: bool) -> Script:
    """A Responses answer: reasoning with a cipher, then a call or some words."""
    place = {"output_index": 0}
    thought = {
        "type": "reasoning", "id": f"rs_{number}", "encrypted_content": f"gAAA-{number}-\u00e9",
        "summary": [{"type": "summary_text", "text": f"Thought {number}."}],
    }  # fmt: skip
    said: dict[str, Any] = {
        "type": "message", "id": f"m_{number}", "role": "assistant",
        "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
    }  # fmt: skip
    if call:
        said = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}",
                "name": "f", "arguments": "{}"}  # fmt: skip
    ended = {
        "id": f"resp_{number}", "model": "m", "status": "completed", "output": [thought, said],
        "usage": {"input_tokens": 9, "output_tokens": 4},
    }  # fmt: skip
    told = [
        {"type": "response.created", "response": {"id": f"resp_{number}", "model": "m"}},
        {"type": "response.output_item.done", **place, "item": thought},
        {"type": "response.output_item.done", "output_index": 1, "item": said},
        {"type": "response.completed", "response": ended},
    ]
    return scripts.pieces([scripts.sse(each, each["type"]) for each in told], LAST_CHUNK)


def thoughts_sent(asked: Asked) -> list[tuple[str, str, str]]:
    return [
        (item["id"], item["encrypted_content"], item["summary"][0]["text"])
        for item in asked.json["input"]
        if item["type"] == "reasoning"
    ]


def turn(gateway: Browser, model: str, history: list[dict[str, Any]]) -> None:
    """One turn: ask, then add the answer and the results of its calls to the history."""
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


def test_reasoning_survives_a_tool_loop_and_a_switch_but_no_forger(
    gateway: Browser, scripted: ScriptedUpstream, reload
):
    add_route("loop-other", add_upstream("loop-other", "responses", scripted.base_url, "openai"))
    reload()
    scripted.on("responses-loop", *(reasoned(n, call=n < 3) for n in (1, 2, 3, 4)))
    scripted.on("loop-other", reasoned(9, call=False))
    scripted.on("chat-loop", scripts.chat())
    history: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    made = [(f"rs_{n}", f"gAAA-{n}-\u00e9", f"Thought {n}.") for n in (1, 2, 3)]

    for _ in range(3):
        turn(gateway, "responses-loop", history)

    first, second, third = scripted.asked_for("responses-loop")
    assert [thoughts_sent(each) for each in (first, second, third)] == [[], made[:1], made[:2]]
    for asked in (second, third):  # each directly before the call that it led to
        kinds = [item["type"] for item in asked.json["input"]]
        assert all(kinds[n + 1] == "function_call" for n, k in enumerate(kinds) if k == "reasoning")

    turn(gateway, "loop-other", history)  # another upstream: nothing of it
    turn(gateway, "chat-loop", history)  # another dialect
    assert thoughts_sent(scripted.asked_for("loop-other")[0]) == []
    assert "gAAA" not in json.dumps(scripted.asked_for("chat-loop")[0].json)

    turn(gateway, "responses-loop", history)  # back: its own three, none of the other's
    assert thoughts_sent(scripted.asked_for("responses-loop")[3]) == made

    signature = history[1]["content"][0]["signature"]
    history[1]["content"][0]["signature"] = signature[:-6] + "AAAAAA"
    history[3]["content"][0]["signature"] = signature[:40]
    turn(gateway, "responses-loop", history)
    assert thoughts_sent(scripted.asked_for("responses-loop")[4])[:1] == made[2:]
