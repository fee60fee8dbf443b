"""Other tests trust the scripted upstream, so it is tested here with Python's HTTP client."""

import contextlib
import gzip
import http.client
import threading
from email.message import Message
from typing import NamedTuple

import pytest

from .script_steps import (
    Close,
    Reset,
    Stall,
    WaitForGate,
    gzipped_stream,
    html_response,
    json_response,
    not_http,
    recorded_error,
    stream,
)
from .stream_cuts import pieces
from .upstream import ScriptedUpstream

RAW = 'data: {"text":"grüße 🙂"}\n\n'.encode() * 40


class Answer(NamedTuple):
    status: int
    headers: Message
    body: bytes


def send_request(upstream: ScriptedUpstream, model: str = "m") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", upstream.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/responses", body=b'{"model":"%s"}' % model.encode())
        with connection.getresponse() as answer:
            return Answer(answer.status, answer.headers, answer.read())


@pytest.mark.parametrize("cut", ["whole", "bytes", "lines", 1, 2, 3])
@pytest.mark.parametrize("raw", [RAW, b"ab", b"a", b""])
def test_joined_pieces_equal_the_recording(raw, cut):
    cut_up = list(pieces(raw, cut))

    assert b"".join(cut_up) == raw
    assert all(cut_up)


@pytest.mark.parametrize("cut", ["whole", "bytes", "lines", 7])
def test_upstream_sends_a_recording_byte_for_byte(upstream, cut):
    upstream.on("m", stream(RAW, cut))

    answer = send_request(upstream)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body == RAW
    upstream.wait_until(lambda requests: [each.ending for each in requests] == ["answered"])


def test_upstream_plays_scripts_in_turn_and_repeats_the_last(upstream):
    upstream.on("m", html_response(502), json_response({"fine": True}))

    assert [send_request(upstream).status for _ in range(3)] == [502, 200, 200]


def test_unknown_model_gets_404(upstream):
    assert send_request(upstream, "unknown").status == 404


def test_reset_and_close_steps_leave_the_body_incomplete(upstream):
    upstream.on("reset", stream(RAW, ending=[Reset()]))
    upstream.on("close", stream(RAW, ending=[Close()]))

    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        send_request(upstream, "reset")
    with pytest.raises(http.client.IncompleteRead):
        send_request(upstream, "close")
    upstream.wait_until(lambda requests: {each.ending for each in requests} == {"reset", "closed"})


def test_upstream_records_a_client_disconnect(upstream):
    upstream.on("m", stream(RAW, ending=[Stall()]))
    connection = http.client.HTTPConnection("127.0.0.1", upstream.port, timeout=60)
    connection.request("POST", "/v1/responses", body=b'{"model":"m"}')

    with connection.getresponse() as answer:
        answer.read(10)
    connection.close()

    upstream.wait_until(lambda requests: requests[0].ending == "client_gone")


def test_upstream_continues_when_its_gate_is_set(upstream):
    gate = threading.Event()
    upstream.on("m", [WaitForGate(gate), *json_response({"fine": True})])
    connection = http.client.HTTPConnection("127.0.0.1", upstream.port, timeout=60)
    connection.request("POST", "/v1/responses", body=b'{"model":"m"}')

    upstream.wait_until(lambda requests: [each.sent for each in requests] == [0])
    gate.set()

    with connection.getresponse() as answer:
        assert answer.status == 200
    connection.close()
    upstream.wait_until(lambda requests: requests[0].ending == "answered")


def test_upstream_can_send_bytes_that_are_not_http(upstream):
    upstream.on("m", not_http())

    with pytest.raises(http.client.BadStatusLine):
        send_request(upstream)


def test_upstream_can_send_unrequested_gzip(upstream):
    upstream.on("m", gzipped_stream(RAW, "bytes"))

    assert gzip.decompress(send_request(upstream).body) == RAW


def test_upstream_plays_a_recorded_error(upstream, tmp_path):
    path = tmp_path / "error.json"
    path.write_text('{"status": 429, "headers": {"retry-after": "2"}, "body_raw": "{}"}')
    upstream.on("m", recorded_error(path))

    answer = send_request(upstream)

    assert (answer.status, answer.headers["retry-after"]) == (429, "2")
