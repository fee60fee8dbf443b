"""An Anthropic upstream behind: what goes through untouched, and what must not."""

import contextlib
import http.client
import json

import pytest

from tests.fakes.steps import LAST_CHUNK, Reset, Stall, json_answer
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .conftest import UPSTREAM_SECRET, message, row

EVENTS = scripts.claude_events(["Hello", " there", "."])
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


@pytest.mark.parametrize("cuts", ["whole", 3, 7])
def test_a_stream_is_relayed_byte_for_byte(gateway: Browser, scripted: ScriptedUpstream, cuts):
    odd = STREAM.replace(b"\n\n", b"\r\n\r\n", 2) + b": a comment\n\n"
    unknown = scripts.sse({"type": "new_kind", "x": [1]}, "new_kind")
    raw = unknown + odd.removesuffix(b": a comment\n\n")
    pieces = [raw] if cuts == "whole" else [raw[n : n + cuts] for n in range(0, len(raw), cuts)]
    scripted.on("anthropic-raw", scripts.pieces(pieces, LAST_CHUNK))

    reply = gateway.post(message("anthropic-raw", stream=True))

    assert reply.body == raw
    kept = row(reply.id, outcome="completed", stop_reason="end_turn", dialect="anthropic")
    assert (kept.input_tokens, kept.output_tokens) == (12, 5)


@pytest.mark.parametrize(
    ("was", "garbled"),
    [
        (b"event: content_block_start", b"event: content\xff_start"),
        (b"event: content_block_stop", b": \xff\nevent: content_block_stop"),
    ],
    ids=["a name", "a comment"],
)
def test_what_stands_beside_the_data_and_is_no_text_is_not_relayed(
    gateway: Browser, scripted: ScriptedUpstream, was: bytes, garbled: bytes
):
    """A client that goes by the name would miss the event, one that decodes the bytes would fail."""
    raw = STREAM.replace(was, garbled)
    scripted.on("anthropic-garbled", scripts.pieces([raw], LAST_CHUNK))

    reply = gateway.post(message("anthropic-garbled", stream=True))

    assert [json.loads(line[6:]) for line in reply.body.splitlines() if line[:6] == b"data: "] == [
        json.loads(line[6:]) for line in STREAM.splitlines() if line[:6] == b"data: "
    ]
    assert reply.body.count(was) == 1
    assert reply.body.decode().isascii()


def test_a_whole_answer_is_relayed_byte_for_byte(gateway: Browser, scripted: ScriptedUpstream):
    raw = json.dumps(WHOLE, indent=1).encode()
    scripted.on("anthropic-whole", json_answer(raw))

    reply = gateway.post(message("anthropic-whole"))

    assert reply.body == raw
    kept = row(reply.id, outcome="completed", stop_reason="end_turn")
    assert (kept.input_tokens, kept.cache_read_tokens, kept.output_tokens) == (12, 3, 5)


def test_the_request_is_forwarded_byte_for_byte(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("anthropic-bytes", scripts.pieces([STREAM], LAST_CHUNK))
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
    (asked,) = scripted.asked_for("anthropic-bytes")
    assert asked.body == raw
    assert asked.path == "/v1/messages?beta=true"
    assert asked.headers["anthropic-beta"] == "b-1,a-2"
    assert asked.headers["x-api-key"] == UPSTREAM_SECRET
    assert asked.headers["user-agent"] == "claude-cli/2.1.329"
    for name in ("authorization", "cookie", "x-forwarded-for", "x-bridge-strict"):
        assert name not in asked.headers


def test_a_renamed_model_is_spliced_in(gateway: Browser, scripted: ScriptedUpstream, reload):
    from proxy.models import Route, Upstream

    route = Route.objects.create(model="renamed")
    route.targets.create(upstream=Upstream.objects.get(name="anthropic"), model="anthropic-real")
    reload()
    scripted.on("anthropic-real", scripts.pieces([STREAM], LAST_CHUNK))
    messages = b'[ {"role":"user", "content":"model: \\"renamed\\""} ]'
    raw = b'{"model": "renamed", "stream":true, "max_tokens": 10, "messages": ' + messages + b"}"

    reply = gateway.post(raw)

    assert reply.status == 200
    (asked,) = scripted.asked_for("anthropic-real")
    assert asked.json["model"] == "anthropic-real"
    assert messages in asked.body
    assert list(asked.json) == ["model", "stream", "max_tokens", "messages"]
    route.delete()
    reload()


@pytest.mark.parametrize(
    ("inside", "untouched"),
    [
        (b'"say \\"model\\": x"', True),
        (b'[{"type":"tool_use","id":"t","name":"n","input":{"model":"renamed-2"}}]', False),
    ],
    ids=["once", "twice"],
)
def test_a_renamed_model_leaves_every_other_byte_where_it_stood(
    gateway: Browser, scripted: ScriptedUpstream, reload, inside: bytes, untouched: bool
):
    from proxy.models import Route, Upstream

    route = Route.objects.create(model="renamed-2")
    route.targets.create(upstream=Upstream.objects.get(name="anthropic"), model="anthropic-real2")
    reload()
    scripted.on("anthropic-real2", scripts.pieces([STREAM], LAST_CHUNK))
    said = b'[{"role":"user","content":"Hi"},\n {"role":"assistant","content":%b}]' % inside
    raw = b'{ "model" : "renamed-2",\n\t"stream":true, "max_tokens": 10, "messages": %b}' % said

    reply = gateway.post(raw)

    assert reply.status == 200
    asked = scripted.asked_for("anthropic-real2")[-1]
    assert said in asked.body
    assert asked.json == json.loads(raw) | {"model": "anthropic-real2"}
    spliced = raw.replace(b'"renamed-2",', b'"anthropic-real2",')
    assert (asked.body == spliced) is untouched
    route.delete()
    reload()


def test_the_query_and_headers_of_several_lines_reach_the_upstream_as_they_came(
    gateway: Browser, scripted: ScriptedUpstream
):
    scripted.on("anthropic-lines", scripts.pieces([STREAM], LAST_CHUNK))
    body = json.dumps(message("anthropic-lines", stream=True)).encode()

    asking = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=90)
    with contextlib.closing(asking) as connection:
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

    (asked,) = scripted.asked_for("anthropic-lines")
    assert asked.path == "/v1/messages?beta=true&next=%2Fa+b"
    assert asked.headers["anthropic-beta"] == "one-2025-01-01,two-2025-01-01,three-2025-01-01"


def test_a_compatible_server_gets_what_it_knows(
    gateway: Browser, scripted: ScriptedUpstream, reload
):
    from proxy.models import Route, Upstream

    real = Upstream.objects.get(name="anthropic")
    alike = Upstream.objects.create(
        name="alike",
        dialect="anthropic",
        base_url=real.base_url,
        secret=real.secret,
        profile="anthropic",
        capabilities={"bearer_auth": True, "refused_fields": ["context_management"]},
    )
    route = Route.objects.create(model="alike")
    route.targets.create(upstream=alike)
    reload()
    scripted.on("alike", scripts.pieces([STREAM], LAST_CHUNK))
    messages = b'[ {"role":"user", "content":"caf\\u00e9"} ]'
    raw = b'{"model":"alike","stream":true,"max_tokens":9,"context_management":{},"messages": '

    reply = gateway.post(raw + messages + b"}")

    assert reply.body == STREAM
    (asked,) = scripted.asked_for("alike")
    assert asked.headers["authorization"] == f"Bearer {UPSTREAM_SECRET}"
    assert "x-api-key" not in asked.headers
    assert list(asked.json) == ["model", "stream", "max_tokens", "messages"]
    assert messages in asked.body
    assert [note["path"] for note in row(reply.id).notes] == ["context_management"]
    route.delete()
    alike.delete()
    reload()


def test_an_error_is_handed_on_as_it_is(gateway: Browser, scripted: ScriptedUpstream):
    body = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "thinking: wording", "extra": 1},
        "request_id": "req_upstream",
    }
    told = {"x-should-retry": "false", "anthropic-ratelimit-requests-limit": "9", "set-cookie": "a"}
    scripted.on("anthropic-400", json_answer(body, 400, told))

    reply = gateway.post(message("anthropic-400", stream=True))

    assert reply.status == 400
    assert reply.json == body
    assert reply.headers["x-should-retry"] == "false"
    assert reply.headers["anthropic-ratelimit-requests-limit"] == "9"
    assert "set-cookie" not in reply.headers
    assert reply.id.startswith("req_")


def test_an_error_that_repeats_our_key_is_handed_on_without_it(
    gateway: Browser, scripted: ScriptedUpstream
):
    error = {"type": "invalid_request_error", "message": f"odd header: {UPSTREAM_SECRET}"}
    scripted.on("anthropic-tells", json_answer({"type": "error", "error": error}, 400))

    reply = gateway.post(message("anthropic-tells"))

    assert reply.json["error"]["message"] == f"odd header: {'*' * len(UPSTREAM_SECRET)}"


def test_our_bad_key_is_not_the_client_s(gateway: Browser, scripted: ScriptedUpstream):
    body = {"type": "error", "error": {"type": "authentication_error", "message": "invalid key"}}
    scripted.on("anthropic-401", json_answer(body, 401))

    reply = gateway.post(message("anthropic-401"))

    assert (reply.status, reply.json["error"]["type"]) == (500, "api_error")
    assert reply.headers["x-should-retry"] == "false"


def test_an_error_as_first_event_is_an_http_error(gateway: Browser, scripted: ScriptedUpstream):
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    scripted.on("anthropic-529", scripts.pieces([scripts.sse(error, "error")], LAST_CHUNK))

    reply = gateway.post(message("anthropic-529", stream=True))

    assert (reply.status, reply.json["error"]["type"]) == (529, "overloaded_error")


@pytest.mark.parametrize("ending", [Reset(), LAST_CHUNK, Stall()])
def test_a_cut_stream_gets_the_ending_that_it_lacks(
    gateway: Browser, scripted: ScriptedUpstream, deadlines, ending
):
    deadlines(idle_s=1 if ending == Stall() else 60)
    scripted.on("anthropic-cut", scripts.pieces([*EVENTS[:3], EVENTS[3][:20]], ending))

    reply = gateway.post(message("anthropic-cut", stream=True))

    assert reply.body.startswith(b"".join(EVENTS[:3]))
    assert reply.kinds[-2:] == ["content_block_stop", "error"]
    outcome = "upstream_timeout" if ending == Stall() else "upstream_error"
    kept = row(reply.id, outcome=outcome, status=200, stop_reason="")
    assert kept.input_tokens == 12


@pytest.mark.parametrize("left", [b"", b"\n", b"\r", b"\r\n", b"\r\n\r"])
def test_an_event_whose_blank_line_was_cut_is_ended_by_one(
    gateway: Browser, scripted: ScriptedUpstream, left: bytes
):
    last = EVENTS[3].removesuffix(b"\n\n")
    scripted.on("anthropic-unended", scripts.pieces([*EVENTS[:3], last + left], LAST_CHUNK))

    reply = gateway.post(message("anthropic-unended", stream=True))

    assert reply.body.startswith(b"".join(EVENTS[:4]) + b"event: content_block_stop\n")
    assert reply.kinds[-1] == "error"


def test_tokens_are_counted_by_the_upstream(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("/v1/messages/count_tokens", json_answer({"input_tokens": 7}))

    reply = gateway.post(message("anthropic-count"), "/v1/messages/count_tokens")

    assert reply.json == {"input_tokens": 7}


def test_metadata_stands_before_the_upstream_s_own_end(
    gateway: Browser, scripted: ScriptedUpstream
):
    scripted.on("anthropic-meta", scripts.pieces([STREAM], LAST_CHUNK))

    reply = gateway.post(message("anthropic-meta", stream=True), x_bridge_events="metadata")

    assert reply.kinds[-2:] == ["bridge.metadata", "message_stop"]
