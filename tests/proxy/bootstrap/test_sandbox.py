"""The sandbox: both APIs send the same content, streamed or not, and state that it is a script."""

import json

import httpx
import pytest

from proxy.bootstrap.sandbox.script import (
    SandboxRequest,
    build_response,
    ends_with_tool_result,
    is_harmless,
    sample_value,
)
from proxy.bootstrap.sandbox.server import free_socket, running
from tests.for_each import for_each

TOOL = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "integer"},
    },
    "required": ["city", "unit", "days"],
}
PROMPT = "Use the tool weather, please."
ARGUMENTS = {"city": "sandbox", "unit": "c", "days": 1}


@pytest.fixture(scope="module")
def sandbox():
    with running(free_socket(0)) as base_url, httpx.Client(base_url=base_url, timeout=30) as client:
        yield client


def responses(model, **fields):
    return {"model": model, "input": [{"role": "user", "content": PROMPT}], **fields}


def chat(model, **fields):
    return {"model": model, "messages": [{"role": "user", "content": PROMPT}], **fields}


def events_of(answer):
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_responses_stream_and_whole_answer_are_the_same(sandbox):
    tools = [{"type": "function", "name": "weather", "parameters": TOOL}]
    whole = sandbox.post("/responses", json=responses("sandbox", tools=tools)).json()
    events = events_of(
        sandbox.post("/responses", json=responses("sandbox", tools=tools, stream=True))
    )

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call"]
    assert json.loads(final["output"][2]["arguments"]) == ARGUMENTS
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == whole["output"][1]["content"][0]["text"]
    assert whole["status"] == "completed"


def test_chat_stream_and_whole_answer_are_the_same(sandbox):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": TOOL}}]
    whole = sandbox.post("/chat/completions", json=chat("sandbox", tools=tools)).json()
    answer = sandbox.post("/chat/completions", json=chat("sandbox", tools=tools, stream=True))
    chunks = events_of(answer)

    message = whole["choices"][0]["message"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    arguments = [
        call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())
    ]
    assert json.loads("".join(arguments)) == ARGUMENTS
    assert answer.text.endswith("data: [DONE]\n\n")
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


@for_each("path", ["/responses", "/chat/completions"])
def test_a_model_name_selects_an_error(sandbox, path):
    body = responses("sandbox-error-429") | chat("sandbox-error-429")

    answer = sandbox.post(path, json=body)

    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"


def test_a_cut_stream_has_no_final_event(sandbox):
    answer = sandbox.post("/responses", json=responses("sandbox-cut", stream=True))

    kinds = [event["type"] for event in events_of(answer)]
    assert kinds[0] == "response.created"
    assert "response.completed" not in kinds


@for_each(
    ("model", "kinds"),
    [
        ("sandbox-text", ["message"]),
        ("sandbox-thinking", ["reasoning", "message"]),
        ("sandbox-tools", ["message", "function_call", "function_call"]),
    ],
)
def test_a_model_name_selects_the_behavior(sandbox, model, kinds):
    tools = [{"type": "function", "name": "weather", "parameters": TOOL}]

    whole = sandbox.post("/responses", json=responses(model, tools=tools)).json()

    assert [item["type"] for item in whole["output"]] == kinds


def test_a_response_states_that_it_is_not_from_a_model(sandbox):
    answer = sandbox.post("/responses", json=responses("sandbox-text"))

    assert "script" in answer.headers["x-upstream"]
    assert "not from a model" in answer.json()["output"][0]["content"][0]["text"]


def test_a_conversation_ends_after_the_tools_result():
    tools = [("weather", TOOL)]

    assert build_response(SandboxRequest("claude", PROMPT, tools)).calls
    assert not build_response(SandboxRequest("claude", PROMPT, tools, has_tool_result=True)).calls
    assert not build_response(
        SandboxRequest("sandbox-tools", PROMPT, tools, required=True, has_tool_result=True)
    ).calls


AGENT = ("Agent", "Bash", "Write", "Read", "WebFetch")


@for_each(
    ("fields", "called"),
    [
        ({"prompt": "List the files."}, []),
        ({"prompt": "Read it"}, ["Read"]),
        ({"prompt": "Reads or Readme or bread"}, []),
        ({"prompt": "Start an Agent, then Bash and Write"}, []),
        ({"prompt": "Hi", "required": True}, ["Read"]),
        ({"prompt": "Hi", "forced_tool": "Read"}, ["Read"]),
        ({"prompt": "Read it", "forced_tool": "Agent"}, []),
        ({"prompt": "Hi", "forced_tool": "nowhere"}, []),
        ({"prompt": "Hi", "model": "sandbox-tools"}, ["Read", "Read"]),
        ({"prompt": "Read it", "model": "sandbox-text"}, []),
    ],
)
def test_a_tool_is_called_only_on_request(fields, called):
    request = {"model": "claude", "tools": [(name, TOOL) for name in AGENT]} | fields

    response = build_response(SandboxRequest(**request))

    assert [call.name for call in response.calls] == called
    assert response.text


@for_each(
    ("name", "harmless"),
    [
        *((name, True) for name in ("Read", "Grep", "get_weather", "ToolSearch", "mcp__docs__search")),
        *(
            (name, False)
            for name in (
                "Agent", "Task", "TaskCreate", "Bash", "BashOutput", "KillShell", "Write", "Edit",
                "MultiEdit", "NotebookEdit", "TodoWrite", "WebFetch", "WebSearch", "Skill",
                "ExitPlanMode", "str_replace_based_edit_tool", "run_command", "deleteFile",
                "mcp__github__create_issue", "code_execution",
            )
        ),
    ],
)  # fmt: skip
def test_a_tool_is_harmless_by_the_words_of_its_name(name, harmless):
    assert is_harmless(name) is harmless


@for_each(
    ("kinds", "expected"),
    [
        ([], False),
        (["user"], False),
        (["user", "assistant", "tool"], True),
        (["user", "assistant", "tool", "user"], True),
        (["user", "assistant", "tool", "assistant", "user"], False),
    ],
)
def test_a_tool_result_counts_until_the_next_assistant_message(kinds, expected):
    assert ends_with_tool_result(kinds) is expected


def test_the_token_limit_truncates_the_response():
    response = build_response(SandboxRequest("claude", "Hi", [], max_tokens=3))

    assert response.truncated
    assert len(response.thinking + response.text) == 12


@for_each("body", [b"", b"[]", b"{", b'{"input": 5}', b'{"messages": [5], "tools": 7}'])
@for_each("path", ["/responses", "/chat/completions", "/nowhere"])
def test_an_invalid_body_gets_an_error_response(sandbox, path, body):
    answer = sandbox.post(path, content=body)

    assert answer.status_code in {200, 400, 404}
    assert answer.json()


@for_each(
    ("schema", "value"),
    [
        ({"type": "object"}, {}),
        ({"type": ["string", "null"]}, "sandbox"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 1),
        ({"const": 7}, 7),
        ({"type": "array", "items": {"type": "string"}}, []),
        (True, "sandbox"),
    ],
)
def test_arguments_fit_their_schema(schema, value):
    assert sample_value(schema) == value
