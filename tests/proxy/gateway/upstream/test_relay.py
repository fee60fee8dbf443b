"""The relay loop: each delta of a paced stream reaches the client at once."""

import threading

import pytest

from proxy.gateway.upstream.response_decoder import ResponseDecoder
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Script, WaitForGate, chunk, stream_head
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, newest_row, row
from tests.proxy.gateway.http_client import GatewayClient, read_until

WORDS = ("one.", "two.", "three.", "four.")
EVENTS = {
    "chat": upstream_scripts.chat_events(WORDS),
    "responses": upstream_scripts.responses_events(WORDS),
}
FIRST = {"chat": 1, "responses": 3}
"""The index of the first text event."""


def gated_script(dialect: str) -> tuple[Script, list[threading.Event]]:
    """Return a script that waits at a gate after each word, and its gates."""
    events, first = EVENTS[dialect], FIRST[dialect]
    gates = [threading.Event() for _ in WORDS]
    script: Script = [stream_head(), *map(chunk, events[:first])]
    for number, gate in enumerate(gates):
        script += [chunk(events[first + number]), WaitForGate(gate)]
    return [*script, *map(chunk, events[first + len(WORDS) :]), LAST_CHUNK], gates


@for_each("dialect", EVENTS)
def test_each_delta_is_relayed_at_once(
    gateway: GatewayClient, scripted: ScriptedUpstream, dialect: str
):
    script, gates = gated_script(dialect)
    scripted.on(f"{dialect}-alone", script)

    received = b""
    with gateway.open(message(f"{dialect}-alone", stream=True)) as connection:
        for word, gate in zip(WORDS, gates, strict=True):
            received += read_until(connection, word.encode())
            gate.set()
        received += read_until(connection, b"message_stop")

    assert received.count(b"text_delta") == len(WORDS)
    stored = newest_row(model_requested=f"{dialect}-alone")
    assert (stored.outcome, stored.output_tokens) == ("completed", 5)
    assert stored.response_bytes == len(whole_body(received))


def whole_body(received: bytes) -> bytes:
    """Return the body of a chunked response."""
    _, _, rest = received.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


def test_a_json_message_is_collected_from_single_deltas(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    script, gates = gated_script("chat")
    scripted.on("chat-gathered", script)
    for gate in gates:
        gate.set()

    reply = gateway.post(message("chat-gathered"))

    assert reply.json["content"] == [{"type": "text", "text": "".join(WORDS), "citations": []}]
    row(reply.id, outcome="completed", output_tokens=5)


def test_a_ping_is_sent_between_two_deltas(
    gateway: GatewayClient, scripted: ScriptedUpstream, settings
):
    settings.PING_INTERVAL_S = 0.1
    script, gates = gated_script("chat")
    scripted.on("chat-pinged", script)

    with gateway.open(message("chat-pinged", stream=True)) as connection:
        received = b""
        for word, gate in zip(WORDS, gates, strict=True):
            received += read_until(connection, word.encode())
            received += read_until(connection, b"event: ping")
            gate.set()
        received += read_until(connection, b"message_stop")

    places = [received.index(mark.encode()) for mark in WORDS]
    assert places == sorted(places)


def test_a_stop_sequence_in_a_single_delta_ends_the_response(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    script, gates = gated_script("responses")
    scripted.on("responses-stopped", script)
    for gate in gates:
        gate.set()

    reply = gateway.post(message("responses-stopped", stream=True, stop_sequences=["hree"]))

    assert reply.text == "one.two.t"
    assert reply.kinds[-1] == "message_stop"
    row(reply.id, outcome="completed", stop_reason="stop_sequence")


def test_an_exception_in_the_relay_ends_the_stream_with_an_error(
    gateway: GatewayClient, scripted: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
):
    script, gates = gated_script("chat")
    scripted.on("chat-broken", script)

    feed = ResponseDecoder.feed

    def broken(decoder: ResponseDecoder, raw: bytes) -> None:
        if b"two." in raw:
            raise ValueError("planted")
        feed(decoder, raw)

    # A bug of the gateway is planted: no upstream can cause one.
    monkeypatch.setattr(ResponseDecoder, "feed", broken)
    with gateway.open(message("chat-broken", stream=True)) as connection:
        read_until(connection, b"one.")
        gates[0].set()
        received = read_until(connection, b"event: error")

    assert b"two." not in received
    newest_row(model_requested="chat-broken", outcome="gateway_error")
