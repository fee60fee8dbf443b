"""The bytes of a stream as an HTTP client receives them, checked frame by frame."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

from tests.e2e import scenarios
from tests.fakes.servers.gateway import Gateway, Reply
from tests.fakes.upstreams import recordings, script_steps
from tests.fakes.upstreams.grammar import faults_of_bytes, read_frames
from tests.for_each import for_each

TEXT = b"".join(
    b"data: %b\n\n" % json.dumps(chunk).encode()
    for chunk in (
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hello"}}]},
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": " there"}}]},
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}},
    )
) + b"data: [DONE]\n\n"  # fmt: skip


def send_request(
    gateway: Gateway, model: str, headers: dict[str, str] | None = None, **more
) -> Reply:
    body = {"model": model, "max_tokens": 5_000, "stream": True} | more
    body.setdefault("messages", [{"role": "user", "content": "Hi"}])
    raw = json.dumps(body).encode()
    return gateway.request(
        "POST", "/v1/messages", raw, {"content-type": "application/json"} | (headers or {})
    )


@pytest.fixture(scope="session")
def recorded_replies(gateway: Gateway):
    """A function that returns the replies to all recorded streams, fetched concurrently once."""

    @cache
    def fetch() -> dict[str, Reply]:
        with ThreadPoolExecutor(8) as pool:
            replies = pool.map(
                lambda scenario: send_request(gateway, scenario.model), scenarios.STREAMS
            )
            return {
                scenario.model: reply
                for scenario, reply in zip(scenarios.STREAMS, replies, strict=True)
            }

    return fetch


@pytest.mark.timeout(300)
@pytest.mark.skipif(not scenarios.STREAMS, reason=recordings.ABSENT)
@for_each("scenario", scenarios.STREAMS, ids=lambda scenario: scenario.id)
def test_recorded_stream_is_sent_as_a_valid_stream(recorded_replies, scenario):
    reply = recorded_replies()[scenario.model]

    assert reply.headers["request-id"].startswith("req_")
    if reply.status == 200:
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert faults_of_bytes(reply.body) == []
    else:
        assert recordings.summary_of_recording(scenario.path).failed
        assert json.loads(reply.body)["type"] == "error"


def test_response_headers_disable_proxy_buffering(gateway, shared_upstream):
    shared_upstream.on("chat-plain", script_steps.stream(TEXT, "lines"))

    reply = send_request(gateway, "chat-plain")

    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in reply.headers
    assert reply.headers["x-bridge-request-id"] == reply.headers["request-id"]


def test_response_has_the_requested_model_name(gateway, shared_upstream):
    shared_upstream.on("chat-plain", script_steps.stream(TEXT, "lines"))

    frames, _ = read_frames(send_request(gateway, "chat-plain").body)

    assert frames[0].body["message"]["model"] == "chat-plain"
    assert frames[0].body["message"]["id"].startswith("msg_")


def test_optional_events_are_sent_only_on_request(gateway, shared_upstream):
    shared_upstream.on("chat-plain", script_steps.stream(TEXT, "lines"))

    plain = send_request(gateway, "chat-plain")
    with_options = send_request(gateway, "chat-plain", {"x-bridge-events": "metadata, blocks"})

    assert faults_of_bytes(plain.body) == []
    assert faults_of_bytes(with_options.body, extras=True) == []
    frames, _ = read_frames(with_options.body)
    assert [frame.name for frame in frames[-2:]] == ["bridge.metadata", "message_stop"]
    assert frames[-2].body["terminal_reason"] == "stop"
    (stop,) = (frame.body for frame in frames if frame.name == "content_block_stop")
    assert stop["content_block"] == {"type": "text", "text": "Hello there", "citations": None}


@for_each("ending", [script_steps.Close(), script_steps.Reset()], ids=["fin", "rst"])
@for_each("after", [1, 2, 3])
def test_cut_upstream_stream_ends_with_an_error_event(gateway, shared_upstream, ending, after):
    events = TEXT.split(b"\n\n")
    cut_stream = b"\n\n".join(events[:after]) + b'\n\ndata: {"choices":[{"ind'
    complete = after == 3  # the finish_reason has arrived, so the response is complete
    shared_upstream.on(
        "chat-cut", script_steps.stream(cut_stream, ending=[script_steps.Sleep(0.05), ending])
    )

    reply = send_request(gateway, "chat-cut", {"x-bridge-events": "metadata"})

    frames, faults = read_frames(reply.body)
    assert faults == []
    assert faults_of_bytes(reply.body, extras=True) == []
    names = [frame.name for frame in frames]
    if complete and isinstance(ending, script_steps.Close):
        return
    assert names[-2:] == ["bridge.metadata", "error"]
    assert "message_stop" not in names
    assert frames[-1].body["error"]["type"] == "api_error"
    assert frames[-2].body["terminal_reason"] == "error"


UNUSUAL_STREAMS = {
    "unrequested gzip": script_steps.gzipped_stream(TEXT, "bytes"),
    "CRLF": script_steps.stream(TEXT.replace(b"\n", b"\r\n"), "bytes", pauses=0),
    "CR only": script_steps.stream(TEXT.replace(b"\n", b"\r"), "bytes", pauses=0),
    "a BOM and comments": script_steps.stream(b"\xef\xbb\xbf: hello\n\n" + TEXT, "bytes", pauses=0),
    "no space after data": script_steps.stream(TEXT.replace(b"data: ", b"data:"), "whole"),
    "plain text by its header": [
        script_steps.head(200, {"content-type": "text/plain", "connection": "close"}),
        script_steps.Send(TEXT),
        script_steps.Close(),
    ],
    "103 before the response": [script_steps.head(103), *script_steps.stream(TEXT, "whole")],
    "the connection stays open after the end": script_steps.stream(
        TEXT, ending=[script_steps.Stall()]
    ),
    "bytes after the end": script_steps.stream(TEXT + b"data: {}\n\ndata: what\n\n", "whole"),
}


@for_each("script", UNUSUAL_STREAMS.values(), ids=UNUSUAL_STREAMS.keys())
def test_unusual_stream_encoding_gives_the_same_response(gateway, shared_upstream, script):
    shared_upstream.on("chat-unusual", script)

    reply = send_request(gateway, "chat-unusual")

    assert reply.status == 200, reply.body
    assert faults_of_bytes(reply.body) == []
    frames, _ = read_frames(reply.body)
    texts = [f.body["delta"]["text"] for f in frames if f.name == "content_block_delta"]
    assert "".join(texts) == "Hello there"
    assert frames[-2].body["usage"]["output_tokens"] == 2


def test_upstream_connection_is_closed_when_the_response_is_complete(gateway, shared_upstream):
    shared_upstream.on("chat-open", script_steps.stream(TEXT, ending=[script_steps.Stall()]))

    send_request(gateway, "chat-open")

    shared_upstream.wait_until(
        lambda _: [a.ending for a in shared_upstream.requests_for("chat-open")] == ["client_gone"]
    )


BAD_RESPONSES = {
    "not HTTP": (script_steps.not_http(), 502, "api_error"),
    "an error page": (script_steps.html_response(502, size=200_000), 502, "api_error"),
    "a page with 200": (script_steps.html_response(200), 502, "api_error"),
    "an empty stream": (script_steps.stream(b""), 502, "api_error"),
    "closed without a response": ([script_steps.Close()], 502, "api_error"),
    "reset without a response": ([script_steps.Reset()], 502, "api_error"),
    "a redirect": ([script_steps.head(307, {"location": "http://127.0.0.1:1/", "content-length": "0"})], 502, "api_error"),
    "the gateway's key is rejected": (script_steps.json_response({"error": {"message": "no", "code": "invalid_api_key"}}, 401), 500, "api_error"),
    "slow down": (script_steps.json_response({"error": {"message": "slow"}}, 429, {"retry-after": "2"}), 429, "rate_limit_error"),
    "quota exhausted": (script_steps.json_response({"error": {"message": "pay", "code": "insufficient_quota"}}, 429), 402, "billing_error"),
    "overloaded": (script_steps.json_response({"error": {"message": "busy"}}, 503), 529, "overloaded_error"),
    "gateway timeout": (script_steps.json_response({}, 504), 504, "timeout_error"),
    "an error in a 200": (script_steps.json_response({"error": {"message": "m", "code": 429}}), 429, "rate_limit_error"),
    "truncated JSON in an error": (script_steps.response(500, b'{"error": {"mess', "application/json"), 500, "api_error"),
    "a teapot": (script_steps.json_response({}, 418), 502, "api_error"),
}  # fmt: skip


@for_each("bad_response", BAD_RESPONSES.values(), ids=BAD_RESPONSES.keys())
@for_each("streaming", [True, False], ids=["stream", "whole"])
def test_invalid_upstream_response_becomes_a_typed_error(
    gateway, shared_upstream, bad_response, streaming
):
    script, status, kind = bad_response
    shared_upstream.on("chat-bad", script)

    reply = send_request(gateway, "chat-bad", stream=streaming)

    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
    body = json.loads(reply.body)
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert body["request_id"] == reply.headers["request-id"]
    assert b"<html" not in reply.body.lower()
    assert b"127.0.0.1" not in reply.body
