"""The main job over real sockets: what a client gets, and the row that stays behind."""

import json

import pytest

from proxy.record.transcripts import read
from tests.fakes.steps import LAST_CHUNK, Sleep, json_answer
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import UPSTREAM_SECRET, message, row

WHOLE = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_delta",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
]


@pytest.mark.parametrize(
    ("dialect", "script"), [("chat", scripts.chat()), ("responses", scripts.responses())]
)
def test_it_streams_an_answer_and_leaves_one_row(
    gateway: Browser, scripted: ScriptedUpstream, dialect: str, script
):
    model = f"{dialect}-hello"
    scripted.on(model, script)

    reply = gateway.post(message(model, stream=True))

    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["x-bridge-request-id"] == reply.id
    assert [kind for kind in reply.kinds if kind != "ping"] == WHOLE
    assert reply.text == "Hello there."
    assert reply.events[0]["message"]["model"] == model
    kept = row(reply.id, outcome="completed", status=200, stop_reason="end_turn", delivered=True)
    assert (kept.input_tokens, kept.output_tokens) == (12, 5)
    assert (kept.upstream, kept.model_upstream, kept.stream) == (dialect, model, True)
    assert kept.ttft_ms is not None
    assert kept.overhead_ms is not None


@pytest.mark.parametrize(
    ("dialect", "script"), [("chat", scripts.chat()), ("responses", scripts.responses())]
)
def test_a_client_that_does_not_stream_gets_the_folded_stream(
    gateway: Browser, scripted: ScriptedUpstream, dialect: str, script
):
    model = f"{dialect}-folded"
    scripted.on(model, script)

    reply = gateway.post(message(model))

    assert reply.status == 200
    assert reply.json["content"] == [{"type": "text", "text": "Hello there."}]
    assert reply.json["stop_reason"] == "end_turn"
    assert reply.json["usage"]["output_tokens"] == 5
    assert scripted.asked_for(model)[-1].json["stream"] is True
    row(reply.id, outcome="completed", stream=False)


def test_a_whole_answer_to_a_streaming_request_is_read_as_one(
    gateway: Browser, scripted: ScriptedUpstream
):
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "All at once."},
        "finish_reason": "stop",
    }
    whole = {"id": "c", "object": "chat.completion", "choices": [choice], "usage": scripts.USAGE}
    scripted.on("chat-whole", json_answer(whole))

    reply = gateway.post(message("chat-whole", stream=True))

    assert reply.text == "All at once."
    assert reply.kinds[-1] == "message_stop"


def test_it_sends_its_own_credential_and_none_of_the_client_s(
    gateway: Browser, scripted: ScriptedUpstream
):
    scripted.on("chat-headers", scripts.chat())

    gateway.post(message("chat-headers"), cookie="a=b", x_app="cli")

    asked = scripted.asked_for("chat-headers")[-1]
    assert asked.headers["authorization"] == f"Bearer {UPSTREAM_SECRET}"
    assert gateway.key not in json.dumps(asked.headers)
    assert "cookie" not in asked.headers
    assert "x-app" not in asked.headers


def test_each_read_leaves_in_one_write(gateway: Browser, scripted: ScriptedUpstream):
    events = scripts.chat_events([f"w{n} " for n in range(50)])
    scripted.on("chat-burst", scripts.pieces([b"".join(events)], LAST_CHUNK))

    with gateway.open(message("chat-burst", stream=True)) as connection:
        seen = b""
        while b"message_stop" not in seen:
            seen += connection.recv(65_536)

    _, _, body = seen.partition(b"\r\n\r\n")
    sizes = [int(line, 16) for line in body.split(b"\r\n")[::2] if line]
    assert len([size for size in sizes if size]) <= 2


def test_events_leave_as_they_come(gateway: Browser, scripted: ScriptedUpstream):
    first, *rest = scripts.chat_events(["first", "second"])
    script = scripts.pieces([first, rest[0]], Sleep(30))
    scripted.on("chat-live", script)

    with gateway.open(message("chat-live", stream=True)) as connection:
        while b"first" not in connection.recv(65_536):
            pass

    scripted.wait_until(lambda asked: asked[-1].ending == "client_gone")


def test_extras_come_only_when_asked_for(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-extras", scripts.chat())

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
    assert stop["content_block"] == {"type": "text", "text": "Hello there."}


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (message("claude-x", max_tokens=0.5), "claude-x"),
        (message("claude-x", thread={"type": "create"}), "claude-x"),
        ({"model": 7, "messages": []}, ""),
        ([], ""),
    ],
)
def test_a_row_of_what_is_refused_names_the_model_all_the_same(gateway: Browser, body, model):
    reply = gateway.post(body)

    assert reply.status == 400
    assert row(reply.id, outcome="refused").model_requested == model


def test_a_body_that_is_too_deep_is_refused_and_has_a_row(gateway: Browser):
    body = b'{"model": "claude-x", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    reply = gateway.post(body)

    assert reply.status == 400
    assert row(reply.id, outcome="refused").model_requested == ""


def test_strict_mode_refuses_what_would_be_lost(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-strict", scripts.chat())

    reply = gateway.post(message("chat-strict", top_k=3), x_bridge_strict="true")

    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("top_k:")
    assert not scripted.asked_for("chat-strict")
    kept = row(reply.id, outcome="refused", status=400, error_source="client", delivered=True)
    assert (kept.model_requested, kept.upstream, kept.attempts) == ("chat-strict", "chat", [])
    assert kept.error_message == reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("header", "value", "told"),
    [
        (
            "x_bridge_strict",
            "perhaps",
            "x-bridge-strict: 'perhaps' is not known; say true or false",
        ),
        ("x_bridge_events", "metadata, tool", "x-bridge-events: 'tool' is not known; say metadata"),
    ],
)
def test_a_wish_that_nobody_knows_is_refused(
    gateway: Browser, scripted: ScriptedUpstream, header: str, value: str, told: str
):
    scripted.on("chat-wish", scripts.chat())

    reply = gateway.post(message("chat-wish"), **{header: value})

    assert reply.status == 400
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert reply.json["error"]["message"].startswith(told)
    assert not scripted.asked_for("chat-wish")
    kept = row(reply.id, outcome="refused", status=400, error_type="invalid_request_error")
    assert (kept.team, kept.key_name, kept.upstream, kept.price) == ("platform", "ada", "", None)
    assert kept.error_message == reply.json["error"]["message"]
    assert read(reply.id) is None


def test_a_compressed_request_is_read(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-packed", scripts.chat())

    reply = gateway.post(message("chat-packed"), packed=True)

    assert reply.status == 200


def test_the_row_knows_that_a_client_tries_again(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-again", scripts.chat())

    first, second = (
        gateway.post(message("chat-again"), x_stainless_retry_count=count) for count in ("0", "1")
    )

    assert row(first.id).notes == []
    (note,) = row(second.id).notes
    assert (note["path"], note["fate"]) == ("x-stainless-retry-count", "ignored")


def test_the_row_knows_who_asked(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("chat-who", scripts.chat())

    reply = gateway.post(
        message("chat-who"),
        user_agent="claude-cli/2.1.329 (external, cli)",
        x_claude_code_session_id="d0210c9f",
        x_claude_code_agent_id="agent-1",
        x_gateway_tags="team=blue,ticket=42",
        anthropic_beta="b-2,a-1",
    )

    kept = row(reply.id)
    assert (kept.client_name, kept.client_version) == ("claude-cli", "2.1.329")
    assert (kept.session_id, kept.agent_id) == ("d0210c9f", "agent-1")
    assert kept.tags == {"team": "blue", "ticket": "42"}
    assert kept.betas == ["a-1", "b-2"]
    assert (kept.team, kept.key_name, kept.ip) == ("platform", "ada", "127.0.0.1")
