"""Translated requests through the running gateway, by feature."""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from proxy.live.running_requests import RUNNING
from proxy.models import ApiKey, Team
from tests.fakes.upstreams.grammar import faults_of_bytes
from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    Script,
    WaitForGate,
    json_response,
    stream,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row
from tests.proxy.gateway.http_client import GatewayClient
from translator.message_stream.stream_grammar import MessageWriter

REFUSED = {"message": "Unsupported parameter: 'temperature' is not supported with this model.",
           "type": "invalid_request_error", "param": "temperature", "code": None}  # fmt: skip


def refusal_of(field: str) -> Script:
    error = json.dumps(REFUSED).replace("temperature", field)
    return json_response({"error": json.loads(error)}, 400)


# Retry without a refused field


def test_a_field_that_the_upstream_refuses_is_dropped_with_a_note(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-spare", refusal_of("temperature"), upstream_scripts.chat())

    reply = gateway.post(message("chat-spare", temperature=0.5))

    assert (reply.status, reply.json["content"][0]["text"]) == (200, "Hello there.")
    first, second = scripted.requests_for("chat-spare")
    assert {**first.json} == {**second.json, "temperature": 0.5}
    exchange = row(reply.id, outcome="completed", status=200)
    assert {"path": "temperature", "fate": "dropped"}.items() <= exchange.notes[-1].items()
    assert [each["status"] for each in exchange.attempts] == [400, 200]


def test_a_strict_client_receives_the_upstream_s_refusal(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-spare-strict", refusal_of("temperature"), upstream_scripts.chat())

    reply = gateway.post(message("chat-spare-strict", temperature=0.5), x_bridge_strict="true")

    assert reply.status == 400
    assert "temperature" in reply.json["error"]["message"]
    assert len(scripted.requests_for("chat-spare-strict")) == 1


def test_a_repaired_request_is_retried_only_once(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-spare-never", refusal_of("temperature"))

    reply = gateway.post(message("chat-spare-never", temperature=0.5, top_p=0.5))

    assert reply.status == 400
    assert len(scripted.requests_for("chat-spare-never")) == 2


def test_the_session_id_is_the_upstream_s_prompt_cache_key(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("responses-session", upstream_scripts.responses())

    gateway.post(message("responses-session"), x_claude_code_session_id="22-33")
    gateway.post(message("responses-session", metadata={"user_id": "u_session_22-33"}))
    gateway.post(message("responses-session"))

    by_header, by_user, neither = (
        request.json.get("prompt_cache_key")
        for request in scripted.requests_for("responses-session")
    )
    assert by_header == by_user == hashlib.sha256(b"22-33").hexdigest()
    assert neither is None


PICTURE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
SEEN = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [
                    {"type": "text", "text": "x"},
                    {"type": "image", "source": PICTURE},
                    {"type": "image", "source": {**PICTURE, "data": "PHN2Zy8+"}},
                ],
            }
        ],
    },
]
BAD_PICTURE = {
    "message": "Invalid 'input[2].output[1].image_url'.",
    "type": "invalid_request_error",
    "param": "input[2].output[1].image_url",
    "code": "invalid_value",
}


@for_each(
    ("name", "steps"),
    [
        ("status", [json_response({"error": BAD_PICTURE}, 400)]),
        (
            "event",
            [stream(upstream_scripts.sse({"type": "error", "error": BAD_PICTURE}, "error"))],
        ),
        ("repair", [refusal_of("temperature"), json_response({"error": BAD_PICTURE}, 400)]),
    ],
)
def test_a_path_in_an_upstream_error_is_whole_in_the_client_s_request(
    gateway: GatewayClient, scripted: ScriptedUpstream, name: str, steps: list[Script]
):
    model = f"responses-place-{name}"
    scripted.on(model, *steps)
    off = {"thinking": {"type": "disabled"}, "temperature": 0.5}

    reply = gateway.post(message(model, messages=SEEN, **off))

    place = "messages.2.content.0.tool_result.content.1.image.source"
    assert reply.json["error"]["message"] == f"Invalid '{place}'."
    sent = scripted.requests_for(model)[-1].json["input"][2]["output"]
    assert [part["type"] for part in sent] == ["input_text", "input_image", "input_text"]


# No upstream call, and context management


@for_each("model", ["chat-nothing", "responses-nothing"])
@for_each("stream", [True, False])
def test_a_request_for_no_tokens_is_answered_by_the_gateway(
    gateway: GatewayClient, scripted: ScriptedUpstream, model: str, stream: bool
):
    reply = gateway.post(message(model, stream=stream) | {"max_tokens": 0})

    if stream:
        assert [k for k in reply.kinds if k != "ping"] == [
            "message_start", "message_delta", "message_stop",
        ]  # fmt: skip
        ending = reply.events[-2]["delta"]
    else:
        ending = reply.json
        assert ending["content"] == []
    assert (reply.status, ending["stop_reason"]) == (200, "max_tokens")
    assert not scripted.requests_for(model)
    row(reply.id, outcome="completed", status=200, input_tokens=0, output_tokens=0)


@for_each("stream", [True, False])
def test_a_client_of_context_management_receives_an_empty_list_of_edits(
    gateway: GatewayClient, scripted: ScriptedUpstream, stream: bool
):
    scripted.on("chat-edits", upstream_scripts.chat())
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}

    reply = gateway.post(message("chat-edits", context_management=edits, stream=stream))

    event = reply.events[-2] if stream else reply.json
    assert event["context_management"] == {"applied_edits": []}


# Strict mode and extra events

LOSSY: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"top_k": 3}, "top_k"),
    ("chat", {"speed": "fast"}, "speed"),
    ("chat", {"tool_choice": {"type": "any"}}, "tool_choice"),
    ("responses", {"top_k": 3}, "top_k"),
    ("responses", {"max_tokens": 2}, "max_tokens"),
    ("responses", {"container": "c_1"}, "container"),
    ("chat", {"no_such_field": 1}, "no_such_field"),
    ("responses", {"no_such_field": 1}, "no_such_field"),
]
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}


@for_each(("dialect", "fields", "path"), LOSSY)
def test_strict_mode_names_the_path_of_a_lossy_field(
    gateway: GatewayClient,
    scripted: ScriptedUpstream,
    dialect: str,
    fields: dict[str, Any],
    path: str,
):
    model = f"{dialect}-strict-{path}"
    script = upstream_scripts.chat() if dialect == "chat" else upstream_scripts.responses()
    scripted.on(model, script)
    request = {**message(model, tools=[TOOL]), **fields}

    strict = gateway.post(request, x_bridge_strict="true")
    lenient = gateway.post(request)

    assert strict.status == 400
    assert strict.json["error"]["message"].startswith(f"{path}:")
    assert lenient.status == 200
    assert len(scripted.requests_for(model)) == 1
    if path != "no_such_field":
        exchange = row(lenient.id)
        assert path in {note["path"] for note in exchange.notes}


def test_a_key_can_enable_strict_mode_and_extra_events(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    options = {"strict": True, "events": ["metadata", "blocks"]}
    team = Team.objects.create(name="strict")
    _, secret = ApiKey.issue(team, "careful", scopes=["messages"], options=options)
    reload()
    scripted.on("chat-strict-key", upstream_scripts.chat())

    refused = gateway.post(message("chat-strict-key", top_k=3), x_api_key=secret)
    plain = gateway.post(message("chat-strict-key", stream=True), x_api_key=secret)

    assert refused.status == 400
    assert refused.json["error"]["message"].startswith("top_k:")
    assert plain.kinds[-2:] == ["bridge.metadata", "message_stop"]
    stops = [e for e in plain.events if e["type"] == "content_block_stop"]
    assert all("content_block" in each for each in stops)


METADATA = {
    "type", "trace_id", "route", "upstream", "model", "success", "attempts", "tokens",
    "latency_ms", "ttft_ms", "terminal_reason", "error", "notes",
}  # fmt: skip


def test_the_metadata_event_has_exactly_the_documented_fields(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-meta", upstream_scripts.chat())
    half = upstream_scripts.pieces(upstream_scripts.chat_events()[:2], LAST_CHUNK)
    scripted.on("chat-meta-cut", half)

    well = gateway.post(message("chat-meta", stream=True), x_bridge_events="metadata")
    badly = gateway.post(message("chat-meta-cut", stream=True), x_bridge_events="metadata")

    good, bad = well.events[-2], badly.events[-2]
    assert set(good) == set(bad) == METADATA
    assert (good["success"], good["terminal_reason"], good["error"]) == (True, "stop", None)
    assert (good["route"], good["upstream"], good["model"]) == ("chat-*", "chat", "chat-meta")
    assert (bad["success"], bad["terminal_reason"]) == (False, "error")
    assert bad["error"]["type"] == "api_error"
    assert badly.kinds[-2:] == ["bridge.metadata", "error"]


def test_a_finished_block_has_the_parsed_input_or_the_raw_text(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    def calls(arguments: str) -> Script:
        call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": arguments}}
        chunks = [
            upstream_scripts.chat_chunk({"tool_calls": [call]}),
            upstream_scripts.chat_chunk(finish="tool_calls"),
        ]
        return upstream_scripts.pieces([*chunks, b"data: [DONE]\n\n"], LAST_CHUNK)

    inputs = []
    for number, arguments in enumerate(('{"city": "Oslo"}', '{"city": ')):
        scripted.on(f"chat-blocks-{number}", calls(arguments))
        request = message(f"chat-blocks-{number}", stream=True, tools=[TOOL])
        reply = gateway.post(request, x_bridge_events="blocks")
        (stop,) = [e for e in reply.events if e["type"] == "content_block_stop"]
        assert {k: stop["content_block"][k] for k in ("type", "id", "name")} == {
            "type": "tool_use", "id": "c1", "name": "f",
        }  # fmt: skip
        inputs.append(stop["content_block"]["input"])

    assert inputs == [{"city": "Oslo"}, '{"city": ']


# Illegal events of the translator


Misuse = Callable[[MessageWriter], object]

MISUSES: dict[str, Misuse] = {
    "foreign-delta": lambda writer: writer.write_delta(
        {"type": "input_json_delta", "partial_json": "planted"}
    ),
    "second-start": lambda writer: writer.start(message_id="planted", model="m", usage={}),
    "second-block": lambda writer: writer.open_block({"type": "text", "text": "planted"}),
    "early-stop": lambda writer: writer.finish(stop_reason="planted", usage={}),
}
"""Steps that the grammar forbids while a text block is open."""


def plant_bug(monkeypatch: pytest.MonkeyPatch, misuse: Misuse) -> None:
    """Make the translator misuse its writer after its third text, as a bug would."""
    write_delta = MessageWriter.write_delta

    def with_bug(writer: MessageWriter, delta: dict[str, Any]) -> None:
        write_delta(writer, delta)
        if "third" in delta.get("text", ""):
            misuse(writer)

    # A bug of the translator is planted: no upstream can cause one.
    monkeypatch.setattr(MessageWriter, "write_delta", with_bug)


def wait_for_headers(model: str) -> None:
    """Wait until the headers of the response for this model are sent."""
    deadline = time.monotonic() + 60
    while not any(
        one.model == model and one.response.headers_sent for one in list(RUNNING.values())
    ):
        assert time.monotonic() < deadline, "no response headers were sent"
        time.sleep(0.005)


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_an_illegal_event_of_the_translator_is_never_sent(
    gateway: GatewayClient,
    scripted: ScriptedUpstream,
    monkeypatch,
    dialect: str,
    misuse: Misuse,
):
    words = ("first ", "second ", "and ", "third", " never")
    events = (
        upstream_scripts.chat_events(words)
        if dialect == "chat"
        else upstream_scripts.responses_events(words)
    )
    model = f"{dialect}-planted"
    at = 3 if dialect == "chat" else 5
    beginning, rest = upstream_scripts.pieces(events[:at]), upstream_scripts.pieces(events[at:])[1:]
    # The gate waits for the headers: before them a fault is an HTTP error, as for ``whole``.
    gate = threading.Event()
    scripted.on(model, [*beginning, WaitForGate(gate), *rest, LAST_CHUNK])
    plant_bug(monkeypatch, misuse)

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(gateway.post, message(model, stream=True))
        wait_for_headers(model)
        gate.set()
        reply = pending.result(90)
    whole = gateway.post(message(model))

    assert faults_of_bytes(reply.body) == []
    assert reply.kinds[-2:] == ["content_block_stop", "error"]
    assert reply.events[-1]["error"] == {"type": "api_error", "message": "internal error"}
    assert reply.events[-1]["request_id"] == reply.id
    assert reply.text.startswith("first second and third")
    assert b"planted" not in reply.body.replace(model.encode(), b"")
    exchange = row(reply.id, outcome="gateway_error", detail="illegal_move", error_type="api_error")
    assert exchange.unknown_events == {"illegal_move": 1}
    assert exchange.error_source == "gateway"
    assert (whole.status, whole.json["error"]["type"]) == (500, "api_error")
    row(whole.id, outcome="gateway_error", detail="illegal_move")


# API versions


@for_each(
    ("fields", "old", "new"),
    [
        ({"temperature": 0.5}, 200, 400),
        ({"top_p": 0.5}, 200, 400),
        ({"top_k": 5}, 200, 400),
        ({}, 200, 200),
    ],
)
def test_each_api_version_has_its_rules(
    gateway: GatewayClient, scripted: ScriptedUpstream, fields: dict[str, Any], old: int, new: int
):
    scripted.on("chat-versions", upstream_scripts.chat())
    request = message("chat-versions", **fields)

    statuses = [
        gateway.post(request, anthropic_version=version).status
        for version in ("2023-06-01", "", "2026-10-21")
    ]

    assert statuses == [old, old, new]
    if new == 400:
        reply = gateway.post(request, anthropic_version="2026-10-21")
        (name,) = fields
        assert reply.json["error"]["message"] == f"{name}: Extra inputs are not permitted"


def test_assistant_documents_are_accepted_only_by_the_old_version(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("responses-documents", upstream_scripts.responses())
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "x"},
    }
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [document]},
        {"role": "user", "content": "b"},
    ]
    request = message("responses-documents", messages=history)

    assert gateway.post(request, anthropic_version="2023-06-01").status == 200
    assert gateway.post(request, anthropic_version="2026-10-21").status == 400
