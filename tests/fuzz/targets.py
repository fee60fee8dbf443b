"""What is fuzzed: bytes go in, and only what is foreseen may come out.

Each target takes any bytes. It returns when they were understood or refused in our own words, and
raises for everything else: that is a finding. ``python -m tests.fuzz SECONDS`` looks for more.
"""

import contextlib

from proxy.gateway.decoding import decode_json
from proxy.gateway.dialects import DIALECTS
from proxy.gateway.hearing import Hearing
from proxy.gateway.safejson import decode_object
from tests.fakes.grammar import faults_of_events
from translator.anthropic.request import parse_messages_request
from translator.dialect import AnswerContext, Target
from translator.errors import BadRequest, BadUpstream
from translator.profiles import PROFILES
from translator.sse import SSEDecoder


def request(raw: bytes) -> None:
    """A client's body, all the way to the bodies that the upstreams would get."""
    try:
        asked = parse_messages_request(decode_object(raw))
    except BadRequest:
        return
    for name, profile in (("chat", "generic"), ("responses", "openai"), ("anthropic", "anthropic")):
        with contextlib.suppress(BadRequest):
            DIALECTS[name].build_request(
                asked, Target(upstream="u", model="m", profile=PROFILES[profile])
            )


def stream(raw: bytes) -> None:
    """An upstream's stream, in both dialects: a legal Anthropic stream comes out, whatever goes in."""
    for name in ("chat", "responses"):
        machine = DIALECTS[name].stream(
            AnswerContext(message_id="msg_1", model="m", input_estimate=9)
        )
        hearing, told = Hearing(machine, name), []
        halves = [half for half in (raw[: len(raw) // 2], raw[len(raw) // 2 :]) if half]
        for piece in (*halves, b""):
            if machine.finished:
                break
            try:
                hearing.feed(piece)
            except BadUpstream:
                told += [*hearing.events, *machine.end()]
                break
            told += hearing.events
        assert told[-1]["type"] in {"message_stop", "error"}, told[-1]
        assert faults_of_events(told, raw_tool_input=True) == []


def whole(raw: bytes) -> None:
    """An upstream's whole answer, and its error bodies."""
    try:
        value = decode_json(raw)
    except BadUpstream:
        return
    for name in ("chat", "responses"):
        dialect = DIALECTS[name]
        for status in (400, 429, 500):
            error = dialect.map_error(status, value)
            assert 400 <= error.status < 600
            assert len(error.message) <= 500
        if isinstance(value, dict):
            machine = dialect.stream(AnswerContext(message_id="msg_1", model="m", input_estimate=9))
            told = machine.feed_whole(value)
            told += [] if machine.finished else machine.end()
            assert faults_of_events(told, raw_tool_input=True) == []


def frames(raw: bytes) -> None:
    """The decoder of server-sent events says the same however the bytes are cut."""

    def read(pieces: list[bytes]) -> list[object]:
        decoder = SSEDecoder(max_event_bytes=4_096)
        try:
            return [event for piece in pieces for event in decoder.feed(piece)]
        except BadUpstream:
            return ["too large"]

    at_once, one_by_one = read([raw]), read([raw[n : n + 1] for n in range(len(raw))])
    assert at_once == one_by_one or "too large" in at_once + one_by_one


TARGETS = {"requests": (request,), "streams": (stream, frames), "answers": (whole,)}
"""Folder of the corpus -> what its files are given to."""
