"""Deltas that come one by one pass from socket to socket, and nobody is woken for them."""

import threading
from collections.abc import Iterator

import pytest

from proxy.gateway.pump import Attempt
from tests.fakes.steps import LAST_CHUNK, Hold, Script, chunk, stream_head
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser, read_until
from .conftest import message, newest_row, row

WORDS = ("one.", "two.", "three.", "four.")
EVENTS = {
    "chat": scripts.chat_events(WORDS),
    "responses": scripts.responses_events(WORDS),
}
FIRST = {"chat": 1, "responses": 3}
"""Where the first word stands among these."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """The reads that were dealt with on the spot."""
    told: list[bytes] = []
    flow = Attempt.flow

    def watched(attempt: Attempt, raw: bytes) -> bool:
        done = flow(attempt, raw)
        if done:
            told.append(raw)
        return done

    monkeypatch.setattr(Attempt, "flow", watched)
    return told


def held(dialect: str) -> tuple[Script, list[threading.Event]]:
    """An upstream that waits after each word until it has been heard."""
    events, first = EVENTS[dialect], FIRST[dialect]
    gates = [threading.Event() for _ in WORDS]
    script: Script = [stream_head(), *map(chunk, events[:first])]
    for number, gate in enumerate(gates):
        script += [chunk(events[first + number]), Hold(gate)]
    return [*script, *map(chunk, events[first + len(WORDS) :]), LAST_CHUNK], gates


@pytest.mark.parametrize("dialect", EVENTS)
def test_a_word_that_comes_alone_wakes_nobody(
    gateway: Browser, scripted: ScriptedUpstream, taken: list[bytes], dialect: str
):
    script, gates = held(dialect)
    scripted.on(f"{dialect}-alone", script)

    heard = b""
    with gateway.open(message(f"{dialect}-alone", stream=True)) as connection:
        for word, gate in zip(WORDS, gates, strict=True):
            heard += read_until(connection, word.encode())
            gate.set()
        heard += read_until(connection, b"message_stop")

    at = FIRST[dialect]
    assert set(taken) >= {*EVENTS[dialect][at + 2 : at + 4]}
    assert heard.count(b"text_delta") == len(WORDS)
    kept = newest_row(model_requested=f"{dialect}-alone")
    assert (kept.outcome, kept.output_tokens) == ("completed", 5)
    assert kept.response_bytes == len(whole_body(heard))


def whole_body(heard: bytes) -> bytes:
    """What stood in the chunks of an answer."""
    _, _, rest = heard.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


def test_a_whole_message_is_gathered_so_as_well(
    gateway: Browser, scripted: ScriptedUpstream, taken: list[bytes]
):
    script, gates = held("chat")
    scripted.on("chat-gathered", script)
    for gate in gates:
        gate.set()

    reply = gateway.post(message("chat-gathered"))

    assert reply.json["content"] == [{"type": "text", "text": "".join(WORDS)}]
    row(reply.id, outcome="completed", output_tokens=5)


def test_a_ping_stands_between_two_words(
    gateway: Browser, scripted: ScriptedUpstream, tuned, taken: list[bytes]
):
    tuned(ping_interval_s=0.1)
    script, gates = held("chat")
    scripted.on("chat-pinged", script)

    with gateway.open(message("chat-pinged", stream=True)) as connection:
        heard = b""
        for word, gate in zip(WORDS, gates, strict=True):
            heard += read_until(connection, word.encode())
            heard += read_until(connection, b"event: ping")
            gate.set()
        heard += read_until(connection, b"message_stop")

    assert len(taken) >= 2
    places = [heard.index(mark.encode()) for mark in WORDS]
    assert places == sorted(places)


def test_a_stop_sequence_in_a_word_that_comes_alone_ends_the_answer(
    gateway: Browser, scripted: ScriptedUpstream
):
    script, gates = held("responses")
    scripted.on("responses-stopped", script)
    for gate in gates:
        gate.set()

    reply = gateway.post(message("responses-stopped", stream=True, stop_sequences=["hree"]))

    assert reply.text == "one.two.t"
    assert reply.kinds[-1] == "message_stop"
    row(reply.id, outcome="completed", stop_reason="stop_sequence")


def test_a_fault_of_ours_in_a_word_that_comes_alone_is_told(
    gateway: Browser, scripted: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
):
    """Not to the event loop, which would only end the upstream's connection."""
    script, gates = held("chat")
    scripted.on("chat-broken", script)

    flow = Attempt.flow

    def broken(attempt: Attempt, raw: bytes) -> bool:
        if b"two." in raw:
            raise ValueError("planted")
        return flow(attempt, raw)

    monkeypatch.setattr(Attempt, "flow", broken)
    with gateway.open(message("chat-broken", stream=True)) as connection:
        read_until(connection, b"one.")
        gates[0].set()
        heard = read_until(connection, b"event: error")

    assert b"two." not in heard
    newest_row(model_requested="chat-broken", outcome="gateway_error")
