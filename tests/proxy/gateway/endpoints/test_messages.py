"""POST /v1/messages over real sockets: the response and the row in the ledger."""

import json

from proxy.ledger.transcripts.storage import read
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Sleep, json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import UPSTREAM_SECRET, message, row
from tests.proxy.gateway.http_client import GatewayClient

EVENTS = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_delta",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
]


@for_each(
    ("dialect", "script"),
    [("chat", upstream_scripts.chat()), ("responses", upstream_scripts.responses())],
)
def test_a_stream_is_relayed_and_has_one_row(
    gateway: GatewayClient, scripted: ScriptedUpstream, dialect: str, script
):
    model = f"{dialect}-hello"
    scripted.on(model, script)

    reply = gateway.post(message(model, stream=True))

    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["x-bridge-request-id"] == reply.id
    assert [kind for kind in reply.kinds if kind != "ping"] == EVENTS
    assert reply.text == "Hello there."
    assert reply.events[0]["message"]["model"] == model
    exchange = row(
        reply.id, outcome="completed", status=200, stop_reason="end_turn", delivered=True
    )
    assert (exchange.input_tokens, exchange.output_tokens) == (12, 5)
    assert (exchange.upstream, exchange.model_upstream, exchange.stream) == (dialect, model, True)
    assert exchange.ttft_ms is not None
    assert exchange.overhead_ms is not None


@for_each(
    ("dialect", "script"),
    [("chat", upstream_scripts.chat()), ("responses", upstream_scripts.responses())],
)
def test_a_client_without_streaming_receives_the_whole_message(
    gateway: GatewayClient, scripted: ScriptedUpstream, dialect: str, script
):
    model = f"{dialect}-folded"
    scripted.on(model, script)

    reply = gateway.post(message(model))

    assert reply.status == 200
    assert reply.json["content"] == [{"type": "text", "text": "Hello there.", "citations": []}]
    assert reply.json["stop_reason"] == "end_turn"
    assert reply.json["usage"]["output_tokens"] == 5
    assert scripted.requests_for(model)[-1].json["stream"] is True
    row(reply.id, outcome="completed", stream=False)


def test_a_json_response_to_a_streaming_request_is_streamed(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "All at once."},
        "finish_reason": "stop",
    }
    whole = {
        "id": "c",
        "object": "chat.completion",
        "choices": [choice],
        "usage": upstream_scripts.USAGE,
    }
    scripted.on("chat-whole", json_response(whole))

    reply = gateway.post(message("chat-whole", stream=True))

    assert reply.text == "All at once."
    assert reply.kinds[-1] == "message_stop"


def test_the_upstream_receives_its_own_credential_and_no_client_headers(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-headers", upstream_scripts.chat())

    gateway.post(message("chat-headers"), cookie="a=b", x_app="cli")

    request = scripted.requests_for("chat-headers")[-1]
    assert request.headers["authorization"] == f"Bearer {UPSTREAM_SECRET}"
    assert gateway.key not in json.dumps(request.headers)
    assert "cookie" not in request.headers
    assert "x-app" not in request.headers


def test_each_upstream_read_is_sent_in_one_write(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    events = upstream_scripts.chat_events([f"w{n} " for n in range(50)])
    scripted.on("chat-burst", upstream_scripts.pieces([b"".join(events)], LAST_CHUNK))

    with gateway.open(message("chat-burst", stream=True)) as connection:
        seen = b""
        while b"message_stop" not in seen:
            seen += connection.recv(65_536)

    _, _, body = seen.partition(b"\r\n\r\n")
    sizes = [int(line, 16) for line in body.split(b"\r\n")[::2] if line]
    assert len([size for size in sizes if size]) <= 2


def test_events_are_sent_as_they_arrive(gateway: GatewayClient, scripted: ScriptedUpstream):
    first, *rest = upstream_scripts.chat_events(["first", "second"])
    script = upstream_scripts.pieces([first, rest[0]], Sleep(30))
    scripted.on("chat-live", script)

    with gateway.open(message("chat-live", stream=True)) as connection:
        while b"first" not in connection.recv(65_536):
            pass

    scripted.wait_until(lambda requests: requests[-1].ending == "client_gone")


def test_extra_events_are_sent_only_on_request(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("chat-extras", upstream_scripts.chat())

    plain = gateway.post(message("chat-extras", stream=True))
    rich = gateway.post(
        message("chat-extras", stream=True, top_k=3), x_bridge_events="metadata, blocks"
    )

    assert "bridge.metadata" not in plain.kinds
    assert rich.kinds[-2:] == ["bridge.metadata", "message_stop"]
    metadata = rich.events[-2]
    assert metadata["trace_id"] == rich.id
    assert metadata["success"] is True
    assert metadata["tokens"] == {"input": 12, "output": 5, "source": "reported"}
    assert [note["path"] for note in metadata["notes"]] == ["top_k"]
    (stop,) = [e for e in rich.events if e["type"] == "content_block_stop"]
    assert stop["content_block"] == {"type": "text", "text": "Hello there.", "citations": None}


@for_each(
    ("body", "model"),
    [
        (message("claude-x", max_tokens=0.5), "claude-x"),
        (message("claude-x", thread={"type": "create"}), "claude-x"),
        ({"model": 7, "messages": []}, ""),
        ([], ""),
    ],
)
def test_the_row_of_an_invalid_request_has_its_model(gateway: GatewayClient, body, model):
    reply = gateway.post(body)

    assert reply.status == 400
    assert row(reply.id, outcome="refused").model_requested == model


def test_a_body_nested_too_deeply_is_refused_and_has_a_row(gateway: GatewayClient):
    body = b'{"model": "claude-x", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    reply = gateway.post(body)

    assert reply.status == 400
    assert row(reply.id, outcome="refused").model_requested == ""


def test_strict_mode_refuses_a_lossy_translation(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-strict", upstream_scripts.chat())

    reply = gateway.post(message("chat-strict", top_k=3), x_bridge_strict="true")

    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("top_k:")
    assert not scripted.requests_for("chat-strict")
    exchange = row(reply.id, outcome="refused", status=400, error_source="client", delivered=True)
    assert (exchange.model_requested, exchange.upstream, exchange.attempts) == (
        "chat-strict",
        "chat",
        [],
    )
    assert exchange.error_message == reply.json["error"]["message"]


@for_each(
    ("header", "value", "error"),
    [
        (
            "x_bridge_strict",
            "perhaps",
            "x-bridge-strict: 'perhaps' is not known; say true or false",
        ),
        ("x_bridge_events", "metadata, tool", "x-bridge-events: 'tool' is not known; say metadata"),
    ],
)
def test_an_unknown_client_option_is_refused(
    gateway: GatewayClient, scripted: ScriptedUpstream, header: str, value: str, error: str
):
    scripted.on("chat-option", upstream_scripts.chat())

    reply = gateway.post(message("chat-option"), **{header: value})

    assert reply.status == 400
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert reply.json["error"]["message"].startswith(error)
    assert not scripted.requests_for("chat-option")
    exchange = row(reply.id, outcome="refused", status=400, error_type="invalid_request_error")
    assert (exchange.names.team, exchange.names.key, exchange.upstream, exchange.price) == (
        "platform",
        "ada",
        "",
        None,
    )
    assert exchange.error_message == reply.json["error"]["message"]
    assert read(reply.id) is None


def test_a_gzip_request_is_accepted(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("chat-packed", upstream_scripts.chat())

    reply = gateway.post(message("chat-packed"), packed=True)

    assert reply.status == 200


def test_the_row_has_a_note_for_a_client_s_retry(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-again", upstream_scripts.chat())

    first, second = (
        gateway.post(message("chat-again"), x_stainless_retry_count=count) for count in ("0", "1")
    )

    assert row(first.id).notes == []
    (note,) = row(second.id).notes
    assert (note["path"], note["fate"]) == ("x-stainless-retry-count", "ignored")


def test_the_row_has_the_client_and_its_session(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("chat-who", upstream_scripts.chat())

    reply = gateway.post(
        message("chat-who"),
        user_agent="claude-cli/2.1.329 (external, cli)",
        x_claude_code_session_id="d0210c9f",
        x_claude_code_agent_id="agent-1",
        x_gateway_tags="team=blue,ticket=42",
        anthropic_beta="b-2,a-1",
    )

    exchange = row(reply.id)
    assert (exchange.client_name, exchange.client_version) == ("claude-cli", "2.1.329")
    assert (exchange.session_id, exchange.agent_id) == ("d0210c9f", "agent-1")
    assert exchange.tags == {"team": "blue", "ticket": "42"}
    assert exchange.betas == ["a-1", "b-2"]
    assert (exchange.names.team, exchange.names.key, exchange.ip) == (
        "platform",
        "ada",
        "127.0.0.1",
    )


CALL = {"type": "tool_use", "id": "call_1", "name": "f", "input": {}}
RESULTS = [
    {"type": "tool_result", "tool_use_id": "call_1", "content": content} for content in ("A", "B")
]


@for_each(
    ("dialect", "script", "sent"),
    [
        (
            "chat",
            upstream_scripts.chat(),
            {"role": "tool", "tool_call_id": "call_1", "content": "A\nB"},
        ),
        (
            "responses",
            upstream_scripts.responses(),
            {"type": "function_call_output", "call_id": "call_1", "output": "A\nB"},
        ),
        (
            "anthropic",
            upstream_scripts.pieces(upstream_scripts.claude_events(), LAST_CHUNK),
            {"role": "user", "content": RESULTS},
        ),
    ],
    ids=["chat", "responses", "anthropic"],
)
def test_two_results_of_a_call_are_sent_as_one_only_if_they_are_translated(
    gateway, scripted, dialect, script, sent
):
    model = f"{dialect}-two-results"
    scripted.on(model, script)
    history = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": RESULTS},
    ]

    reply = gateway.post(message(model, messages=history, stream=True))

    assert reply.kinds[-1] == "message_stop"
    body = scripted.requests_for(model)[-1].json
    assert (body.get("input") or body["messages"])[-1] == sent
    notes = [note["reason"] for note in row(reply.id).notes]
    assert ("several results of the same call are sent as one" in notes) == (dialect != "anthropic")
