"""Passthrough to an Anthropic upstream: what is relayed unchanged, and what is not."""

import contextlib
import http.client
import json

import pytest

from tests.fakes.upstreams.grammar import faults_of_bytes
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Reset, Stall, json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import UPSTREAM_SECRET, message, row
from tests.proxy.gateway.http_client import GatewayClient

EVENTS = upstream_scripts.claude_events(["Hello", " there", "."])
STREAM = b"".join(EVENTS)
WHOLE = {
    "id": "msg_upstream",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "Hi", "unknown_field": 1}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 12, "output_tokens": 5, "cache_read_input_tokens": 3},
}


@for_each("cuts", ["whole", 3, 7])
def test_a_stream_is_relayed_byte_for_byte(
    gateway: GatewayClient, scripted: ScriptedUpstream, cuts
):
    crlf = STREAM.replace(b"\n\n", b"\r\n\r\n", 2) + b": a comment\n\n"
    unknown = upstream_scripts.sse({"type": "new_kind", "x": [1]}, "new_kind")
    raw = unknown + crlf.removesuffix(b": a comment\n\n")
    pieces = [raw] if cuts == "whole" else [raw[n : n + cuts] for n in range(0, len(raw), cuts)]
    scripted.on("anthropic-raw", upstream_scripts.pieces(pieces, LAST_CHUNK))

    reply = gateway.post(message("anthropic-raw", stream=True))

    assert reply.body == raw
    stored = row(reply.id, outcome="completed", stop_reason="end_turn", dialect="anthropic")
    assert (stored.input_tokens, stored.output_tokens) == (12, 5)


@for_each(
    ("was", "garbled"),
    [
        (b"event: content_block_start", b"event: content\xff_start"),
        (b"event: content_block_stop", b": \xff\nevent: content_block_stop"),
    ],
    ids=["a name", "a comment"],
)
def test_an_event_name_or_comment_that_is_not_utf8_is_not_relayed(
    gateway: GatewayClient, scripted: ScriptedUpstream, was: bytes, garbled: bytes
):
    """A client that reads the name would miss the event; one that decodes the bytes would fail."""
    raw = STREAM.replace(was, garbled)
    scripted.on("anthropic-garbled", upstream_scripts.pieces([raw], LAST_CHUNK))

    reply = gateway.post(message("anthropic-garbled", stream=True))

    assert [json.loads(line[6:]) for line in reply.body.splitlines() if line[:6] == b"data: "] == [
        json.loads(line[6:]) for line in STREAM.splitlines() if line[:6] == b"data: "
    ]
    assert reply.body.count(was) == 1
    assert reply.body.decode().isascii()


def test_a_whole_answer_is_relayed_byte_for_byte(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    raw = json.dumps(WHOLE, indent=1).encode()
    scripted.on("anthropic-whole", json_response(raw))

    reply = gateway.post(message("anthropic-whole"))

    assert reply.body == raw
    stored = row(reply.id, outcome="completed", stop_reason="end_turn")
    assert (stored.input_tokens, stored.cache_read_tokens, stored.output_tokens) == (12, 3, 5)


def test_the_request_is_forwarded_byte_for_byte(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("anthropic-bytes", upstream_scripts.pieces([STREAM], LAST_CHUNK))
    raw = (
        b'{ "max_tokens":  10,\n"model": "anthropic-bytes", "new_field": 1.50, "stream": true,'
        b'"messages": [{"role": "user", "content": "caf\\u00e9 \\ud83d\\ude00"}] }'
    )

    reply = gateway.post(
        raw,
        "/v1/messages?beta=true",
        anthropic_beta="b-1,a-2",
        anthropic_version="2023-06-01",
        x_claude_code_session_id="s-1",
        user_agent="claude-cli/2.1.329",
        cookie="a=b",
        x_forwarded_for="10.9.8.7",
        x_bridge_strict="false",
    )

    assert reply.status == 200
    (received,) = scripted.requests_for("anthropic-bytes")
    assert received.body == raw
    assert received.path == "/v1/messages?beta=true"
    assert received.headers["anthropic-beta"] == "b-1,a-2"
    assert received.headers["x-api-key"] == UPSTREAM_SECRET
    assert received.headers["user-agent"] == "claude-cli/2.1.329"
    for name in ("authorization", "cookie", "x-forwarded-for", "x-bridge-strict"):
        assert name not in received.headers


def test_a_renamed_model_changes_only_the_model_in_the_body(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    from proxy.models import Route, Upstream

    route = Route.objects.create(model="renamed")
    route.targets.create(upstream=Upstream.objects.get(name="anthropic"), model="anthropic-real")
    reload()
    scripted.on("anthropic-real", upstream_scripts.pieces([STREAM], LAST_CHUNK))
    messages = b'[ {"role":"user", "content":"model: \\"renamed\\""} ]'
    raw = b'{"model": "renamed", "stream":true, "max_tokens": 10, "messages": ' + messages + b"}"

    reply = gateway.post(raw)

    assert reply.status == 200
    (received,) = scripted.requests_for("anthropic-real")
    assert received.json["model"] == "anthropic-real"
    assert messages in received.body
    assert list(received.json) == ["model", "stream", "max_tokens", "messages"]
    route.delete()
    reload()


@for_each(
    ("inside", "untouched"),
    [
        (b'"say \\"model\\": x"', True),
        (b'[{"type":"tool_use","id":"t","name":"n","input":{"model":"renamed-2"}}]', False),
    ],
    ids=["once", "twice"],
)
def test_a_renamed_model_leaves_all_other_bytes_unchanged(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload, inside: bytes, untouched: bool
):
    from proxy.models import Route, Upstream

    route = Route.objects.create(model="renamed-2")
    route.targets.create(upstream=Upstream.objects.get(name="anthropic"), model="anthropic-real2")
    reload()
    scripted.on("anthropic-real2", upstream_scripts.pieces([STREAM], LAST_CHUNK))
    conversation = b'[{"role":"user","content":"Hi"},\n {"role":"assistant","content":%b}]' % inside
    raw = (
        b'{ "model" : "renamed-2",\n\t"stream":true, "max_tokens": 10, "messages": %b}'
        % conversation
    )

    reply = gateway.post(raw)

    assert reply.status == 200
    received = scripted.requests_for("anthropic-real2")[-1]
    assert conversation in received.body
    assert received.json == json.loads(raw) | {"model": "anthropic-real2"}
    spliced = raw.replace(b'"renamed-2",', b'"anthropic-real2",')
    assert (received.body == spliced) is untouched
    route.delete()
    reload()


def test_the_query_and_repeated_headers_are_forwarded(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("anthropic-lines", upstream_scripts.pieces([STREAM], LAST_CHUNK))
    body = json.dumps(message("anthropic-lines", stream=True)).encode()

    client = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=90)
    with contextlib.closing(client) as connection:
        connection.putrequest("POST", "/v1/messages?beta=true&next=%2Fa+b")
        for name, text in (
            ("x-api-key", gateway.key),
            ("anthropic-beta", "one-2025-01-01"),
            ("anthropic-beta", "two-2025-01-01,three-2025-01-01"),
            ("content-length", str(len(body))),
        ):
            connection.putheader(name, text)
        connection.endheaders(body)
        assert connection.getresponse().read() == STREAM

    (received,) = scripted.requests_for("anthropic-lines")
    assert received.path == "/v1/messages?beta=true&next=%2Fa+b"
    assert received.headers["anthropic-beta"] == "one-2025-01-01,two-2025-01-01,three-2025-01-01"


def test_a_compatible_server_gets_only_the_fields_that_it_supports(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    from proxy.models import Route, Upstream

    real = Upstream.objects.get(name="anthropic")
    compatible = Upstream.objects.create(
        name="compatible",
        dialect="anthropic",
        base_url=real.base_url,
        secret=real.secret,
        profile="anthropic",
        capabilities={"bearer_auth": True, "refused_fields": ["context_management"]},
    )
    route = Route.objects.create(model="compatible")
    route.targets.create(upstream=compatible)
    reload()
    scripted.on("compatible", upstream_scripts.pieces([STREAM], LAST_CHUNK))
    messages = b'[ {"role":"user", "content":"caf\\u00e9"} ]'
    raw = b'{"model":"compatible","stream":true,"max_tokens":9,"context_management":{},"messages": '

    reply = gateway.post(raw + messages + b"}")

    assert reply.body == STREAM
    (received,) = scripted.requests_for("compatible")
    assert received.headers["authorization"] == f"Bearer {UPSTREAM_SECRET}"
    assert "x-api-key" not in received.headers
    assert list(received.json) == ["model", "stream", "max_tokens", "messages"]
    assert messages in received.body
    assert [note["path"] for note in row(reply.id).notes] == ["context_management"]
    route.delete()
    compatible.delete()
    reload()


def test_an_error_is_relayed_unchanged(gateway: GatewayClient, scripted: ScriptedUpstream):
    body = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "thinking: wording", "extra": 1},
        "request_id": "req_upstream",
    }
    headers = {
        "x-should-retry": "false",
        "anthropic-ratelimit-requests-limit": "9",
        "set-cookie": "a",
    }
    scripted.on("anthropic-400", json_response(body, 400, headers))

    reply = gateway.post(message("anthropic-400", stream=True))

    assert reply.status == 400
    assert reply.json == body
    assert reply.headers["x-should-retry"] == "false"
    assert reply.headers["anthropic-ratelimit-requests-limit"] == "9"
    assert "set-cookie" not in reply.headers
    assert reply.id.startswith("req_")


def test_an_error_is_relayed_without_the_upstream_key(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    error = {"type": "invalid_request_error", "message": f"bad header: {UPSTREAM_SECRET}"}
    scripted.on("anthropic-repeats", json_response({"type": "error", "error": error}, 400))

    reply = gateway.post(message("anthropic-repeats"))

    assert reply.json["error"]["message"] == f"bad header: {'*' * len(UPSTREAM_SECRET)}"


def test_a_rejected_upstream_key_is_a_server_error_for_the_client(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    body = {"type": "error", "error": {"type": "authentication_error", "message": "invalid key"}}
    scripted.on("anthropic-401", json_response(body, 401))

    reply = gateway.post(message("anthropic-401"))

    assert (reply.status, reply.json["error"]["type"]) == (500, "api_error")
    assert reply.headers["x-should-retry"] == "false"


def test_an_error_as_first_event_is_an_http_error(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    scripted.on(
        "anthropic-529", upstream_scripts.pieces([upstream_scripts.sse(error, "error")], LAST_CHUNK)
    )

    reply = gateway.post(message("anthropic-529", stream=True))

    assert (reply.status, reply.json["error"]["type"]) == (529, "overloaded_error")


@pytest.mark.parametrize("ending", [Reset(), LAST_CHUNK, Stall()])
def test_a_cut_stream_is_ended_with_an_error(
    gateway: GatewayClient, scripted: ScriptedUpstream, deadlines, ending
):
    deadlines(idle_s=1 if ending == Stall() else 60)
    scripted.on("anthropic-cut", upstream_scripts.pieces([*EVENTS[:3], EVENTS[3][:20]], ending))

    reply = gateway.post(message("anthropic-cut", stream=True))

    assert reply.body.startswith(b"".join(EVENTS[:3]))
    assert reply.kinds[-2:] == ["content_block_stop", "error"]
    outcome = "upstream_timeout" if ending == Stall() else "upstream_error"
    stored = row(reply.id, outcome=outcome, status=200, stop_reason="")
    assert stored.input_tokens == 12


@for_each("left", [b"", b"\n", b"\r", b"\r\n", b"\r\n\r"])
def test_an_event_without_its_blank_line_gets_one(
    gateway: GatewayClient, scripted: ScriptedUpstream, left: bytes
):
    last = EVENTS[3].removesuffix(b"\n\n")
    scripted.on(
        "anthropic-unended", upstream_scripts.pieces([*EVENTS[:3], last + left], LAST_CHUNK)
    )

    reply = gateway.post(message("anthropic-unended", stream=True))

    assert reply.body.startswith(b"".join(EVENTS[:4]) + b"event: content_block_stop\n")
    assert reply.kinds[-1] == "error"


def test_tokens_are_counted_by_the_upstream(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("/v1/messages/count_tokens", json_response({"input_tokens": 7}))

    reply = gateway.post(message("anthropic-count"), "/v1/messages/count_tokens")

    assert reply.json == {"input_tokens": 7}


def test_metadata_is_sent_before_the_upstream_s_end(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("anthropic-meta", upstream_scripts.pieces([STREAM], LAST_CHUNK))

    reply = gateway.post(message("anthropic-meta", stream=True), x_bridge_events="metadata")

    assert reply.kinds[-2:] == ["bridge.metadata", "message_stop"]


def test_a_frame_without_an_event_line_gets_one(gateway: GatewayClient, scripted: ScriptedUpstream):
    """The SDKs skip a frame without an ``event`` line, so the client would miss its content."""
    unnamed = b"".join(frame.partition(b"\n")[2] for frame in EVENTS)
    scripted.on("anthropic-unnamed", upstream_scripts.pieces([unnamed], LAST_CHUNK))

    reply = gateway.post(message("anthropic-unnamed", stream=True))

    assert reply.body.count(b"event: ") == len(EVENTS)
    assert reply.text == "Hello there."
    row(reply.id, outcome="completed")


def test_overlapping_blocks_are_sent_one_after_the_other(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    """llama.cpp stops the block of the thinking only at the end of the response."""
    thinking = {"type": "thinking", "thinking": ""}
    parts = [
        {"type": "content_block_start", "index": 0, "content_block": thinking},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "Hm"},
        },
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_stop", "index": 1},
    ]
    middle = [upstream_scripts.sse(part, str(part["type"])) for part in parts]
    scripted.on(
        "anthropic-overlap",
        upstream_scripts.pieces([EVENTS[0], *middle, *EVENTS[-2:]], LAST_CHUNK),
    )

    reply = gateway.post(message("anthropic-overlap", stream=True))

    assert faults_of_bytes(reply.body) == []
    assert reply.text == "Hi"
    stored = row(reply.id, outcome="completed", stop_reason="end_turn")
    assert [(note["fate"], note["reason"]) for note in stored.notes] == [
        ("repaired", "the upstream's content blocks overlapped")
    ]


def test_zero_tokens_beside_text_are_relayed_but_charged_by_an_estimate(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    """claude-code-router reports no tokens at all."""
    whole = {**WHOLE, "usage": {"input_tokens": 0, "output_tokens": 0}}
    scripted.on("anthropic-zero", json_response(whole))

    reply = gateway.post(message("anthropic-zero"))

    assert reply.json["usage"] == whole["usage"]
    stored = row(reply.id, outcome="completed", input_source="estimated")
    assert stored.input_tokens > 0
    assert stored.output_tokens > 0
