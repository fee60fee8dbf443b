"""The failures of an upstream's stream."""

import gzip
import json
import threading

import pytest

from proxy.json_value_limit import MAX_VALUES
from tests.fakes.upstreams.script_steps import (
    LAST_CHUNK,
    Close,
    Reset,
    Sleep,
    Stall,
    WaitForGate,
    chunk,
    gzip_bomb,
    head,
    json_response,
    stream,
    stream_head,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.assertions import assert_error, assert_stream_error
from tests.proxy.gateway.conftest import DIALECTS, message, newest_row, row
from tests.proxy.gateway.http_client import GatewayClient, read_until

EVENTS = upstream_scripts.chat_events(["one ", "two ", "three"])
TEXT_SO_FAR = EVENTS[:3]


def test_silence_after_the_head_is_a_timeout(
    gateway: GatewayClient, scripted: ScriptedUpstream, deadlines
):
    deadlines(idle_s=0.3)
    scripted.on("chat-silent", upstream_scripts.pieces([], Stall()))

    reply = gateway.post(message("chat-silent", stream=True))

    assert_error(reply, 504, "timeout_error")
    row(reply.id, outcome="upstream_timeout")


def test_a_stream_that_falls_silent_ends_in_an_error_after_pings(
    gateway: GatewayClient, scripted: ScriptedUpstream, deadlines, settings
):
    deadlines(idle_s=1)
    settings.PING_INTERVAL_S = 0.05
    scripted.on("chat-hang", upstream_scripts.pieces(TEXT_SO_FAR, Stall()))

    reply = gateway.post(message("chat-hang", stream=True))

    assert_stream_error(reply, "timeout_error")
    assert "ping" in reply.kinds
    stored = row(reply.id, outcome="upstream_timeout", status=200, stop_reason="")
    assert stored.output_tokens is not None


def test_a_delayed_stream_is_committed_in_time_and_pinged(
    gateway: GatewayClient, scripted: ScriptedUpstream, settings
):
    settings.FIRST_EVENT_WAIT_S = 0.1
    settings.PING_INTERVAL_S = 0.1
    gate = threading.Event()
    scripted.on("chat-late", [WaitForGate(gate), *upstream_scripts.chat()])

    with gateway.open(message("chat-late", stream=True)) as connection:
        opening = read_until(connection, b"event: ping")
        gate.set()
        rest = read_until(connection, b"message_stop")

    assert opening.startswith(b"HTTP/1.1 200")
    assert b"message_start" not in opening
    assert rest.index(b"message_start") < rest.index(b"Hello") < rest.index(b"there")


def test_a_trickle_ends_at_the_total(gateway: GatewayClient, scripted: ScriptedUpstream, deadlines):
    deadlines(total_s=1.5)
    trickle = [
        step
        for n in range(400)
        for step in (chunk(upstream_scripts.chat_chunk({"content": f"{n} "})), Sleep(0.1))
    ]
    scripted.on("chat-trickle", [stream_head(), *trickle])

    reply = gateway.post(message("chat-trickle", stream=True))

    assert_stream_error(reply, "timeout_error")
    row(reply.id, outcome="upstream_timeout", detail="total_s")


@for_each("ending", [Reset(), Close(), LAST_CHUNK])
@for_each("count", [3, 4, 5])
def test_a_cut_stream_ends_in_an_error(
    gateway: GatewayClient, scripted: ScriptedUpstream, count: int, ending
):
    scripted.on("chat-cut", upstream_scripts.pieces(EVENTS[:count], Sleep(0.05), ending))

    reply = gateway.post(message("chat-cut", stream=True))

    if count == 5 and ending is LAST_CHUNK and reply.kinds[-1] == "message_stop":
        return  # the finish reason has arrived: only the usage is missing
    assert_stream_error(reply, "api_error")
    assert reply.text == "one two three"[: len(reply.text)]
    row(reply.id, outcome="upstream_error", status=200, stop_reason="")


def test_a_stream_cut_before_any_content_is_an_http_error(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-early", upstream_scripts.pieces(EVENTS[:1], Reset()))

    reply = gateway.post(message("chat-early", stream=True))

    assert_error(reply, 502, "api_error")
    row(reply.id, outcome="upstream_error", status=502)


def test_an_empty_stream_is_an_http_error(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("chat-empty", stream(b""))

    assert_error(gateway.post(message("chat-empty", stream=True)), 502, "api_error")


@for_each(
    "bad",
    [b'data: {"choices": [{"del\n\n', b'data: {"choices": "\xff\xfe"}\n\n', b"data: 7\n\n"],
)
def test_an_event_that_is_not_json_ends_the_stream(
    gateway: GatewayClient, scripted: ScriptedUpstream, bad: bytes
):
    scripted.on("chat-bad", upstream_scripts.pieces([*TEXT_SO_FAR, bad, *EVENTS[3:]], LAST_CHUNK))

    reply = gateway.post(message("chat-bad", stream=True))

    assert_stream_error(reply, "api_error")
    assert reply.text == "one two "
    row(reply.id, outcome="upstream_error", detail="bad_event")


def test_an_endless_event_ends_the_stream(gateway: GatewayClient, scripted: ScriptedUpstream):
    endless = [chunk(b"data: " + b"x" * 2**20)] + [chunk(b"x" * 2**20)] * 20
    scripted.on("chat-huge", [stream_head(), chunk(b"".join(TEXT_SO_FAR)), *endless, Stall()])

    reply = gateway.post(message("chat-huge", stream=True))

    assert reply.kinds[-1] == "error"
    assert reply.events[-1]["error"]["type"] == "api_error"


def test_a_big_event_is_delivered(gateway: GatewayClient, scripted: ScriptedUpstream):
    word = "w" * 5_000_000
    scripted.on("chat-big", upstream_scripts.chat(word))

    reply = gateway.post(message("chat-big", stream=True))

    assert reply.text == word


def test_compressed_streams_are_read(gateway: GatewayClient, scripted: ScriptedUpstream):
    packed = gzip.compress(b"".join(EVENTS))
    response_head = stream_head({"content-encoding": "gzip"})
    scripted.on("chat-gzip", [response_head, chunk(packed[:20]), chunk(packed[20:]), LAST_CHUNK])

    reply = gateway.post(message("chat-gzip", stream=True))

    assert reply.text == "one two three"


def test_a_compression_bomb_is_not_decompressed(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("chat-bomb", gzip_bomb())

    assert_error(gateway.post(message("chat-bomb", stream=True)), 502, "api_error")


@for_each("fields", [{"stream": True}, {}])
@for_each("form", ["event", "whole"])
@for_each("dialect", DIALECTS)
def test_json_of_too_many_values_is_not_decoded(
    gateway: GatewayClient,
    scripted: ScriptedUpstream,
    dialect: str,
    form: str,
    fields: dict[str, bool],
):
    text = b'{"type": "other", "x": [' + b"{}," * MAX_VALUES + b"{}]}"
    model = f"{dialect}-many-values"
    scripted.on(
        model, stream(b"data: " + text + b"\n\n") if form == "event" else json_response(text)
    )

    assert_error(gateway.post(message(model, **fields)), 502, "api_error")


def test_a_large_event_is_decoded(gateway: GatewayClient, scripted: ScriptedUpstream):
    text = "word " * 200_000
    scripted.on("chat-large-event", upstream_scripts.chat("Hello ", text))

    assert gateway.post(message("chat-large-event", stream=True)).text == f"Hello {text}"


def test_bytes_after_the_end_of_a_gzip_response_are_not_stored(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    packed = gzip.compress(b"".join(EVENTS[:-1]))
    scripted.on(
        "chat-behind-gzip",
        [stream_head({"content-encoding": "gzip"}), chunk(packed), chunk(b"junk" * 1_000), Stall()],
    )

    assert_stream_error(gateway.post(message("chat-behind-gzip", stream=True)), "api_error")


@for_each("encoding", ["br", "gzip, gzip", "x-unknown"])
def test_other_encodings_are_refused(
    gateway: GatewayClient, scripted: ScriptedUpstream, encoding: str
):
    scripted.on("chat-br", [stream_head({"content-encoding": encoding}), chunk(b"x"), LAST_CHUNK])

    assert_error(gateway.post(message("chat-br", stream=True)), 502, "api_error")


@for_each("kind", ["text/plain", "", "application/json"])
def test_a_stream_without_content_type_is_recognized(
    gateway: GatewayClient, scripted: ScriptedUpstream, kind: str
):
    response_head = {"transfer-encoding": "chunked"} | ({"content-type": kind} if kind else {})
    scripted.on("chat-untyped", [head(200, response_head), chunk(b"".join(EVENTS)), LAST_CHUNK])

    reply = gateway.post(message("chat-untyped", stream=True))

    assert reply.text == "one two three"


def test_a_json_response_with_the_type_of_a_stream_is_read(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    choice = {"index": 0, "message": {"content": "Hello."}, "finish_reason": "stop"}
    body = json.dumps({"object": "chat.completion", "choices": [choice]}, indent=2).encode()
    response_head = {"transfer-encoding": "chunked", "content-type": "text/event-stream"}
    scripted.on("chat-whole", [head(200, response_head), chunk(body), LAST_CHUNK])

    reply = gateway.post(message("chat-whole", stream=True))

    assert reply.text == "Hello."


def test_an_error_within_a_200_response_has_its_own_status(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    error = {"error": {"message": "slow", "code": "rate_limit_exceeded", "type": "requests"}}
    scripted.on("chat-200-json", json_response(error))
    scripted.on("chat-200-event", stream(upstream_scripts.sse(error)))

    for model in ("chat-200-json", "chat-200-event"):
        assert_error(gateway.post(message(model, stream=True)), 429, "rate_limit_error")


def test_an_error_in_a_vendor_field_has_its_own_status(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    minimax = {"choices": None, "base_resp": {"status_code": 1002, "status_msg": "slow"}}
    llama = b'error: {"code":400,"message":"the request exceeds the available context size"}\n\n'
    scripted.on("chat-minimax-json", json_response(minimax))
    scripted.on("chat-minimax-event", stream(upstream_scripts.sse(minimax)))
    scripted.on("chat-llama", stream(llama + b"data: [DONE]\n\n"))

    for model in ("chat-minimax-json", "chat-minimax-event"):
        assert_error(gateway.post(message(model)), 429, "rate_limit_error")
        assert_error(gateway.post(message(model, stream=True)), 429, "rate_limit_error")
    error = assert_error(
        gateway.post(message("chat-llama", stream=True)), 400, "invalid_request_error"
    )
    assert error["message"].startswith("prompt is too long")


def test_an_upstream_that_does_not_close_its_stream_is_not_awaited(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-lingers", upstream_scripts.pieces(EVENTS, Stall()))

    reply = gateway.post(message("chat-lingers", stream=True))

    assert reply.kinds[-1] == "message_stop"
    row(reply.id, outcome="completed")
    scripted.wait_until(lambda requests: requests[-1].ending == "client_gone")


def test_bytes_after_the_end_are_ignored(gateway: GatewayClient, scripted: ScriptedUpstream):
    scripted.on("chat-after", stream(b"".join(EVENTS) + b'data: {"more": 1}\n\ndata: broken\n\n'))

    reply = gateway.post(message("chat-after", stream=True))

    assert reply.kinds[-1] == "message_stop"


def test_a_client_disconnect_closes_the_upstream_at_once(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("chat-left", upstream_scripts.pieces(TEXT_SO_FAR, Stall()))

    with gateway.open(message("chat-left", stream=True)) as connection:
        while b"two" not in connection.recv(65_536):
            pass

    scripted.wait_until(lambda requests: requests[-1].ending == "client_gone")
    stored = newest_row(model_requested="chat-left")
    assert (stored.outcome, stored.status, stored.delivered) == ("client_gone", 499, False)


def test_an_illegal_event_is_named_to_the_client_in_the_row_and_in_the_log(
    gateway: GatewayClient, scripted: ScriptedUpstream, caplog: pytest.LogCaptureFixture
):
    start, *_, stop = upstream_scripts.claude_events(["Hi"])
    scripted.on("anthropic-illegal", upstream_scripts.pieces([start, stop], LAST_CHUNK))

    reply = gateway.post(message("anthropic-illegal", stream=True))

    reason = "upstream sent a bad event: message_stop between blocks"
    assert (reply.status, reply.json["error"]["message"]) == (502, reason)
    stored = row(reply.id, outcome="upstream_error", detail="bad_event")
    assert stored.error_message == reason
    assert "(illegal_message_stop)" in caplog.text
