"""What a plain HTTP client sees of a stream: the bytes themselves, judged frame by frame."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

from tests.fakes import recordings, steps
from tests.fakes.gateway import Gateway, Reply
from tests.fakes.grammar import faults_of_bytes, read_frames

from . import plays

TEXT = b"".join(
    b"data: %b\n\n" % json.dumps(chunk).encode()
    for chunk in (
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hello"}}]},
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": " there"}}]},
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
    )
) + b"data: [DONE]\n\n"  # fmt: skip


def ask(gateway: Gateway, model: str, headers: dict[str, str] | None = None, **more) -> Reply:
    body = {"model": model, "max_tokens": 5_000, "stream": True} | more
    body.setdefault("messages", [{"role": "user", "content": "Hi"}])
    raw = json.dumps(body).encode()
    return gateway.ask(
        "POST", "/v1/messages", raw, {"content-type": "application/json"} | (headers or {})
    )


@pytest.fixture(scope="session")
def wire(gateway: Gateway):
    """The bytes of every recorded stream, fetched side by side."""

    @cache
    def fetch() -> dict[str, Reply]:
        with ThreadPoolExecutor(8) as pool:
            replies = pool.map(lambda play: ask(gateway, play.model), plays.STREAMS)
            return {play.model: reply for play, reply in zip(plays.STREAMS, replies, strict=True)}

    return fetch


@pytest.mark.timeout(300)
@pytest.mark.skipif(not plays.STREAMS, reason=recordings.ABSENT)
@pytest.mark.parametrize("play", plays.STREAMS, ids=lambda play: play.id)
def test_every_recorded_stream_leaves_as_legal_bytes(wire, play):
    reply = wire()[play.model]

    assert reply.headers["request-id"].startswith("req_")
    if reply.status == 200:
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert faults_of_bytes(reply.body) == []
    else:
        assert recordings.read(play.path).failed
        assert json.loads(reply.body)["type"] == "error"


def test_the_headers_keep_proxies_from_buffering(gateway, player):
    player.on("chat-plain", steps.stream(TEXT, "lines"))

    reply = ask(gateway, "chat-plain")

    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in reply.headers
    assert reply.headers["x-bridge-request-id"] == reply.headers["request-id"]


def test_the_client_reads_its_own_model_name_back(gateway, player):
    player.on("chat-plain", steps.stream(TEXT, "lines"))

    frames, _ = read_frames(ask(gateway, "chat-plain").body)

    assert frames[0].body["message"]["model"] == "chat-plain"
    assert frames[0].body["message"]["id"].startswith("msg_")


def test_the_extras_come_only_when_asked_for(gateway, player):
    player.on("chat-plain", steps.stream(TEXT, "lines"))

    plain = ask(gateway, "chat-plain")
    extra = ask(gateway, "chat-plain", {"x-bridge-events": "metadata, blocks"})

    assert faults_of_bytes(plain.body) == []
    assert faults_of_bytes(extra.body, extras=True) == []
    frames, _ = read_frames(extra.body)
    assert [frame.name for frame in frames[-2:]] == ["bridge.metadata", "message_stop"]
    assert frames[-2].body["terminal_reason"] == "stop"
    (stop,) = (frame.body for frame in frames if frame.name == "content_block_stop")
    assert stop["content_block"] == {"type": "text", "text": "Hello there"}


@pytest.mark.parametrize("ending", [steps.Close(), steps.Reset()], ids=["fin", "rst"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_cut_upstream_ends_in_an_error_event(gateway, player, ending, after):
    events = TEXT.split(b"\n\n")
    torn = b"\n\n".join(events[:after]) + b'\n\ndata: {"choices":[{"ind'
    done = after == 3  # the finish_reason was heard: nothing of the answer is missing
    player.on("chat-torn", steps.stream(torn, ending=[steps.Sleep(0.05), ending]))

    reply = ask(gateway, "chat-torn", {"x-bridge-events": "metadata"})

    frames, faults = read_frames(reply.body)
    assert faults == []
    assert faults_of_bytes(reply.body, extras=True) == []
    names = [frame.name for frame in frames]
    if done and isinstance(ending, steps.Close):
        return
    assert names[-2:] == ["bridge.metadata", "error"]
    assert "message_stop" not in names
    assert frames[-1].body["error"]["type"] == "api_error"
    assert frames[-2].body["terminal_reason"] == "error"


ODD_STREAMS = {
    "gzip that nobody asked for": steps.gzipped_stream(TEXT, "bytes"),
    "CRLF": steps.stream(TEXT.replace(b"\n", b"\r\n"), "bytes", pauses=0),
    "lone CR": steps.stream(TEXT.replace(b"\n", b"\r"), "bytes", pauses=0),
    "a BOM and comments": steps.stream(b"\xef\xbb\xbf: hello\n\n" + TEXT, "bytes", pauses=0),
    "no space after data": steps.stream(TEXT.replace(b"data: ", b"data:"), "whole"),
    "plain text by its header": [
        steps.head(200, {"content-type": "text/plain", "connection": "close"}),
        steps.Send(TEXT),
        steps.Close(),
    ],
    "103 before the answer": [steps.head(103), *steps.stream(TEXT, "whole")],
    "the connection stays open after the end": steps.stream(TEXT, ending=[steps.Stall()]),
    "bytes after the end": steps.stream(TEXT + b"data: {}\n\ndata: what\n\n", "whole"),
}


@pytest.mark.parametrize("script", ODD_STREAMS.values(), ids=ODD_STREAMS.keys())
def test_an_oddly_sent_stream_is_the_same_stream(gateway, player, script):
    player.on("chat-odd", script)

    reply = ask(gateway, "chat-odd")

    assert reply.status == 200, reply.body
    assert faults_of_bytes(reply.body) == []
    frames, _ = read_frames(reply.body)
    said = [f.body["delta"]["text"] for f in frames if f.name == "content_block_delta"]
    assert "".join(said) == "Hello there"
    assert frames[-2].body["usage"]["output_tokens"] == 2


def test_the_upstream_is_closed_as_soon_as_the_answer_is_whole(gateway, player):
    player.on("chat-open", steps.stream(TEXT, ending=[steps.Stall()]))

    ask(gateway, "chat-open")

    player.wait_until(
        lambda _: [a.ending for a in player.asked_for("chat-open")] == ["client_gone"]
    )


BAD_ANSWERS = {
    "garbage": (steps.garbage(), 502, "api_error"),
    "an error page": (steps.html_answer(502, size=200_000), 502, "api_error"),
    "a page with 200": (steps.html_answer(200), 502, "api_error"),
    "an empty stream": (steps.stream(b""), 502, "api_error"),
    "closed without a word": ([steps.Close()], 502, "api_error"),
    "reset without a word": ([steps.Reset()], 502, "api_error"),
    "a redirect": ([steps.head(307, {"location": "http://127.0.0.1:1/", "content-length": "0"})], 502, "api_error"),
    "our key is refused": (steps.json_answer({"error": {"message": "no", "code": "invalid_api_key"}}, 401), 500, "api_error"),
    "slow down": (steps.json_answer({"error": {"message": "slow"}}, 429, {"retry-after": "2"}), 429, "rate_limit_error"),
    "no money": (steps.json_answer({"error": {"message": "pay", "code": "insufficient_quota"}}, 429), 402, "billing_error"),
    "overloaded": (steps.json_answer({"error": {"message": "busy"}}, 503), 529, "overloaded_error"),
    "gateway timeout": (steps.json_answer({}, 504), 504, "timeout_error"),
    "an error in a 200": (steps.json_answer({"error": {"message": "m", "code": 429}}), 429, "rate_limit_error"),
    "truncated JSON in an error": (steps.answer(500, b'{"error": {"mess', "application/json"), 500, "api_error"),
    "a teapot": (steps.json_answer({}, 418), 502, "api_error"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_a_bad_upstream_becomes_a_typed_error(gateway, player, bad, streaming):
    script, status, kind = bad
    player.on("chat-bad", script)

    reply = ask(gateway, "chat-bad", stream=streaming)

    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
    body = json.loads(reply.body)
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert body["request_id"] == reply.headers["request-id"]
    assert b"<html" not in reply.body.lower()
    assert b"127.0.0.1" not in reply.body
