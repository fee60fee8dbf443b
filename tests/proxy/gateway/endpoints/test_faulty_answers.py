"""Answers and refusals of faulty upstreams, as the clients of the running gateway get them."""

import json

import pytest

from tests.fakes.upstreams.script_steps import json_response, stream
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message, row
from tests.proxy.gateway.http_client import GatewayClient


@for_each("script", [upstream_scripts.chat(), upstream_scripts.responses()])
def test_an_answer_of_one_read_has_its_time_to_the_first_token(
    gateway: GatewayClient, scripted: ScriptedUpstream, script
):
    model = "chat-one-read" if script == upstream_scripts.chat() else "responses-one-read"
    scripted.on(model, script)

    reply = gateway.post(message(model, stream=True), x_bridge_events="metadata")

    (metadata,) = [event for event in reply.events if event["type"] == "bridge.metadata"]
    assert 0 < metadata["ttft_ms"] <= metadata["latency_ms"]


# A second generation inside of the first


def spliced(dialect: str):
    """Return a script of a stream in which a second response begins after some text."""
    events = {
        "anthropic": upstream_scripts.claude_events,
        "chat": upstream_scripts.chat_events,
        "responses": upstream_scripts.responses_events,
    }[dialect]
    ids = {"anthropic": b"msg_upstream", "chat": b"chatcmpl-1", "responses": b"resp_1"}
    first, second = b"".join(events(["First", " half"])[:5]), b"".join(events(["Second."]))
    if dialect == "chat":
        first = b"".join(events(["First", " half"])[:3])
    return stream(first + second.replace(ids[dialect], b"another_1"))


@for_each("dialect", ["anthropic", "chat", "responses"])
def test_a_spliced_stream_ends_with_an_error_to_ask_again_for(
    gateway: GatewayClient, scripted: ScriptedUpstream, dialect
):
    scripted.on(f"{dialect}-spliced", spliced(dialect))

    reply = gateway.post(message(f"{dialect}-spliced", stream=True))

    error = reply.json["error"] if reply.status != 200 else reply.events[-1]["error"]
    assert error["type"] == "overloaded_error"
    assert b"Second" not in reply.body
    assert row(reply.id).outcome == "upstream_error"


@for_each("dialect", ["chat", "responses"])
def test_a_whole_answer_from_a_spliced_stream_is_the_second_one_alone(
    gateway: GatewayClient, scripted: ScriptedUpstream, dialect
):
    scripted.on(f"{dialect}-spliced-whole", spliced(dialect))

    reply = gateway.post(message(f"{dialect}-spliced-whole"))

    assert reply.status == 200
    assert [block["text"] for block in reply.json["content"]] == ["Second."]
    exchange = row(reply.id, outcome="completed")
    assert "content" in {note["path"] for note in exchange.notes}


# Anthropic streams of other servers


def test_usage_and_input_that_a_server_sends_otherwise_reach_the_client_as_sdks_read_them(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    start, opened, *_, stop, end, last = (
        json.loads(frame.split(b"data: ")[1]) for frame in upstream_scripts.claude_events()
    )
    start["message"]["usage"] = None
    end["usage"] = None
    opened["content_block"] = {
        "type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sky"},
    }  # fmt: skip
    sent = [upstream_scripts.sse(each, each["type"]) for each in (start, opened, stop, end, last)]
    scripted.on("anthropic-lenient", stream(b"".join(sent)))

    reply = gateway.post(message("anthropic-lenient", stream=True))

    assert reply.events[0]["message"]["usage"]["input_tokens"] > 0
    assert reply.events[1]["content_block"]["input"] == {}
    pieces = [event["delta"]["partial_json"] for event in reply.events if "partial_json" in
              event.get("delta", ())]  # fmt: skip
    assert json.loads("".join(pieces)) == {"at": "sky"}
    assert reply.events[-2]["usage"]["output_tokens"] > 0
    exchange = row(reply.id, outcome="completed")
    assert {"usage", "content"} <= {note["path"] for note in exchange.notes}


# Several calls in one

LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {}}}}


WRAPPED = {
    "name": "multi_tool_use.parallel",
    "arguments": json.dumps({"tool_uses": [
        {"recipient_name": "functions.look", "parameters": {"at": place}}
        for place in ("sky", "sea")
    ]}),
}  # fmt: skip
GLUED = {"name": "look", "arguments": '{"at":"sky"}{"at":"sea"}'}


@for_each("streaming", [True, False])
@for_each("function", [WRAPPED, GLUED])
def test_the_calls_inside_of_one_reach_the_client(
    gateway: GatewayClient, scripted: ScriptedUpstream, function, streaming
):
    model = f"chat-several-{function['name'][:4]}-{streaming}".lower()
    scripted.on(model, stream(b"".join([
        upstream_scripts.chat_chunk({"tool_calls": [{"index": 0, "id": "c1", "function": function}]}),
        upstream_scripts.chat_chunk(finish="tool_calls"),
        b"data: [DONE]\n\n",
    ])))  # fmt: skip

    reply = gateway.post(message(model, tools=[LOOK], stream=streaming))

    blocks = (
        [e["content_block"] for e in reply.events if e["type"] == "content_block_start"]
        if streaming
        else reply.json["content"]
    )
    assert [(block["type"], block["name"]) for block in blocks] == [("tool_use", "look")] * 2
    assert len({block["id"] for block in blocks}) == 2
    exchange = row(reply.id, outcome="completed")
    assert "repaired" in {note["fate"] for note in exchange.notes}


# Paths of errors in a history that was changed for the model

SYSTEM_FIRST = json_response(
    {"error": {"message": "System message must be at the beginning.", "code": 400}}, 400
)
BAD_IMAGE = json_response(
    {"error": {
        "message": "Invalid 'input[2].content[1].image_url'. Expected a base64-encoded data URL.",
        "param": "input[2].content[1].image_url", "code": "invalid_value",
    }}, 400,
)  # fmt: skip
PICTURE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
MESSAGES = [
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Hello."},
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [
        {"type": "text", "text": "What is it?"}, {"type": "image", "source": PICTURE},
    ]},
]  # fmt: skip


@pytest.fixture(scope="module")
def vllm(world: str, scripted: ScriptedUpstream) -> None:
    add_route("vllm-*", add_upstream("vllm", "responses", scripted.base_url, "vllm"))


def test_an_image_refused_after_a_remembered_change_is_named_by_the_client_s_path(
    vllm, gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    reload()
    scripted.on("vllm-one", SYSTEM_FIRST, upstream_scripts.responses(), BAD_IMAGE)
    scripted.on("vllm-two", SYSTEM_FIRST, BAD_IMAGE)

    accepted = gateway.post(message("vllm-one", messages=MESSAGES))
    remembered = gateway.post(message("vllm-one", messages=MESSAGES))
    repaired = gateway.post(message("vllm-two", messages=MESSAGES))

    assert (accepted.status, remembered.status, repaired.status) == (200, 400, 400)
    assert len(scripted.requests_for("vllm-one")) == 3
    for refused in (remembered, repaired):
        assert "messages.3.content.1.image" in refused.json["error"]["message"]
        assert "input[" not in refused.json["error"]["message"]
