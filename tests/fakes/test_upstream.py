"""The scripted upstream is an oracle, so it is tested itself, by a client that is not ours."""

import contextlib
import gzip
import http.client
import threading
from email.message import Message
from typing import NamedTuple

import pytest

from .cuts import pieces
from .steps import (
    Close,
    Hold,
    Reset,
    Stall,
    garbage,
    gzipped_stream,
    html_answer,
    json_answer,
    recorded_error,
    stream,
)
from .upstream import ScriptedUpstream

RAW = 'data: {"text":"grüße 🙂"}\n\n'.encode() * 40


class Answer(NamedTuple):
    status: int
    headers: Message
    body: bytes


def ask(upstream: ScriptedUpstream, model: str = "m") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", upstream.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/responses", body=b'{"model":"%s"}' % model.encode())
        with connection.getresponse() as answer:
            return Answer(answer.status, answer.headers, answer.read())


@pytest.mark.parametrize("cut", ["whole", "bytes", "lines", 1, 2, 3])
@pytest.mark.parametrize("raw", [RAW, b"ab", b"a", b""])
def test_pieces_joined_are_the_recording(raw, cut):
    cut_up = list(pieces(raw, cut))

    assert b"".join(cut_up) == raw
    assert all(cut_up)


@pytest.mark.parametrize("cut", ["whole", "bytes", "lines", 7])
def test_it_plays_a_recording_byte_for_byte(upstream, cut):
    upstream.on("m", stream(RAW, cut))

    answer = ask(upstream)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body == RAW
    upstream.wait_until(lambda asked: [each.ending for each in asked] == ["answered"])


def test_it_takes_scripts_in_turn_and_repeats_the_last(upstream):
    upstream.on("m", html_answer(502), json_answer({"fine": True}))

    assert [ask(upstream).status for _ in range(3)] == [502, 200, 200]


def test_an_unknown_model_is_answered_as_openai_would(upstream):
    assert ask(upstream, "nobody").status == 404


def test_a_reset_is_a_reset_and_a_close_leaves_the_body_unfinished(upstream):
    upstream.on("reset", stream(RAW, ending=[Reset()]))
    upstream.on("close", stream(RAW, ending=[Close()]))

    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        ask(upstream, "reset")
    with pytest.raises(http.client.IncompleteRead):
        ask(upstream, "close")
    upstream.wait_until(lambda asked: {each.ending for each in asked} == {"reset", "closed"})


def test_it_notices_that_the_client_left(upstream):
    upstream.on("m", stream(RAW, ending=[Stall()]))
    connection = http.client.HTTPConnection("127.0.0.1", upstream.port, timeout=60)
    connection.request("POST", "/v1/responses", body=b'{"model":"m"}')

    with connection.getresponse() as answer:
        answer.read(10)
    connection.close()

    upstream.wait_until(lambda asked: asked[0].ending == "client_gone")


def test_it_goes_on_when_its_gate_is_opened(upstream):
    gate = threading.Event()
    upstream.on("m", [Hold(gate), *json_answer({"fine": True})])
    connection = http.client.HTTPConnection("127.0.0.1", upstream.port, timeout=60)
    connection.request("POST", "/v1/responses", body=b'{"model":"m"}')

    upstream.wait_until(lambda asked: [each.sent for each in asked] == [0])
    gate.set()

    with connection.getresponse() as answer:
        assert answer.status == 200
    connection.close()
    upstream.wait_until(lambda asked: asked[0].ending == "answered")


def test_it_can_speak_something_that_is_not_http(upstream):
    upstream.on("m", garbage())

    with pytest.raises(http.client.BadStatusLine):
        ask(upstream)


def test_it_can_send_gzip_that_nobody_asked_for(upstream):
    upstream.on("m", gzipped_stream(RAW, "bytes"))

    assert gzip.decompress(ask(upstream).body) == RAW


def test_it_plays_a_recorded_error(upstream, tmp_path):
    path = tmp_path / "error.json"
    path.write_text('{"status": 429, "headers": {"retry-after": "2"}, "body_raw": "{}"}')
    upstream.on("m", recorded_error(path))

    answer = ask(upstream)

    assert (answer.status, answer.headers["retry-after"]) == (429, "2")
