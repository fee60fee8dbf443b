"""Fuzz targets: functions that accept any bytes and raise only for a finding.

A target returns if the bytes were parsed or rejected with one of the project's errors. Any other
exception is a finding. ``python -m tests.slow.fuzz SECONDS`` searches for more.
"""

import contextlib

from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.http.request_body import decode_object
from proxy.gateway.snapshot.dialects import DIALECTS
from proxy.gateway.upstream.response_decoder import ResponseDecoder
from tests.fakes.upstreams.grammar import faults_of_events
from translator.anthropic.request_validation import parse_messages_request
from translator.capabilities import PROFILES
from translator.dialect import ResponseContext, TranslationTarget
from translator.errors import BadRequest, BadUpstream
from translator.stream.sse import SSEDecoder


def request(raw: bytes) -> None:
    """Parse a client's body and build the upstream bodies from it."""
    try:
        parsed = parse_messages_request(decode_object(raw))
    except BadRequest:
        return
    for name, profile in (("chat", "generic"), ("responses", "openai"), ("anthropic", "anthropic")):
        with contextlib.suppress(BadRequest):
            DIALECTS[name].build_request(
                parsed, TranslationTarget(upstream="u", model="m", profile=PROFILES[profile])
            )


def stream(raw: bytes) -> None:
    """Translate an upstream stream in both dialects; the result must be a valid Anthropic stream."""
    for name in ("chat", "responses"):
        machine = DIALECTS[name].stream(
            ResponseContext(message_id="msg_1", model="m", input_estimate=9)
        )
        decoder, events = ResponseDecoder(machine, name), []
        parts = [half for half in (raw[: len(raw) // 2], raw[len(raw) // 2 :]) if half]
        for piece in (*parts, b""):
            if machine.finished:
                break
            try:
                decoder.feed(piece)
            except BadUpstream:
                events += [*decoder.events, *machine.end()]
                break
            events += decoder.events
        assert events[-1]["type"] in {"message_stop", "error"}, events[-1]
        assert faults_of_events(events, raw_tool_input=True) == []


def whole(raw: bytes) -> None:
    """Translate a complete upstream response and its error bodies."""
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
            machine = dialect.stream(
                ResponseContext(message_id="msg_1", model="m", input_estimate=9)
            )
            events = machine.feed_body(value)
            events += [] if machine.finished else machine.end()
            assert faults_of_events(events, raw_tool_input=True) == []


def frames(raw: bytes) -> None:
    """Decode server-sent events; the result must not depend on how the bytes are cut."""

    def read(pieces: list[bytes]) -> list[object]:
        decoder = SSEDecoder(max_event_bytes=4_096)
        try:
            return [event for piece in pieces for event in decoder.feed(piece)]
        except BadUpstream:
            return ["too large"]

    at_once, one_by_one = read([raw]), read([raw[n : n + 1] for n in range(len(raw))])
    assert at_once == one_by_one or "too large" in at_once + one_by_one


TARGETS = {"requests": (request,), "streams": (stream, frames), "answers": (whole,)}
"""Corpus folder -> the targets that get its files."""
