"""Texts that take a backtracking pattern seconds, sent to the running gateway."""

import json

import pytest

from tests.fakes.upstreams.script_steps import json_response
from tests.proxy.gateway import upstream_scripts
from tests.slow.threats import raw_http

SIZE = 60_000  # with its JSON it is below the 64 KB that the gateway reads of an error
HARMLESS = "x" * SIZE
MAX_FACTOR = 20
"""Maximum factor over a harmless text; a backtracking pattern takes hundreds of times as long."""


def repeat_word(word: str) -> str:
    return word * (SIZE // len(word))


def measure_s(
    running, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> float:
    """Send a request; return the CPU seconds of the gateway, which other load does not change."""
    before = running.process.cpu_s
    running.process.request(method, path, body, headers)
    return running.process.cpu_s - before


def assert_quick(running, send_text, words) -> None:
    """``send_text`` sends a text; the worst ones must take about as much CPU as a harmless one."""
    harmless = max(send_text(HARMLESS) for _ in range(3))
    for word in words:
        assert send_text(repeat_word(word)) < MAX_FACTOR * harmless + 0.5, word
    running.assert_healthy()


WORDS_OF_ERRORS = (
    "model ", "a.", "a-", "a+", "eyJ-", "sk-", "://a:", "try again in 1", "input.1", "'\\", "to a",
)  # fmt: skip


@pytest.mark.parametrize(("status", "field"), [(400, "message"), (404, "message"), (404, "param")])
def test_upstream_error_is_parsed_in_linear_time(running, status, field):
    def send_text(text):
        body = {"error": {"type": "invalid_request_error", field: text}}
        running.upstream.on("chat-slow", json_response(body, status))
        head = {"content-type": "application/json"}
        return measure_s(
            running, "POST", "/v1/messages", raw_http.messages_body(model="chat-slow"), head
        )

    assert_quick(running, send_text, WORDS_OF_ERRORS)


def test_stream_error_is_parsed_in_linear_time(running):
    def send_text(text):
        event = upstream_scripts.sse({"error": {"message": text, "code": 404}})
        running.upstream.on("chat-slow", upstream_scripts.pieces([event]))
        head = {"content-type": "application/json"}
        return measure_s(
            running, "POST", "/v1/messages", raw_http.messages_body(model="chat-slow"), head
        )

    assert_quick(running, send_text, ["model "])


@pytest.mark.parametrize(
    "header", ["x-gateway-tags", "user-agent", "anthropic-beta", "x-claude-code-session-id"]
)
def test_client_header_is_parsed_in_linear_time(running, header):
    def send_text(text):
        return measure_s(running, "GET", "/v1/models/x", None, {header: text})

    assert_quick(running, send_text, [" ", "a", "a/", "1", "a=", "session_"])


@pytest.mark.parametrize("start", ["/admin/r/", "/admin/", "/api/v1/", "/v1/organizations/", "/"])
def test_path_is_parsed_in_linear_time(running, start):
    """The path is parsed before any check of a key or session."""

    def send_text(text):
        return measure_s(running, "GET", f"{start}{text}x", None, {"x-api-key": ""})

    assert_quick(running, send_text, ["/", "a/", "/change/"])


def test_too_many_or_too_long_stop_sequences_are_rejected(running):
    for sequences in (["STOP"] * 65, ["x" * 4_000, "y" * 97]):
        body = raw_http.messages_body(model="chat-x", stop_sequences=sequences)
        reply = running.process.request(
            "POST", "/v1/messages", body, {"content-type": "application/json"}
        )
        assert (reply.status, json.loads(reply.body)["error"]["type"]) == (
            400,
            "invalid_request_error",
        )
        assert "stop_sequences" in json.loads(reply.body)["error"]["message"]
    body = raw_http.messages_body(model="chat-x", stop_sequences=["STOP"] * 64)
    assert running.process.request("POST", "/v1/messages", body).status == 200


WORDS_OF_REQUESTS = ("a ", "%41 ", "a%20&\\n ", "&amp;", "\\u0041 ", "not ")


@pytest.mark.parametrize("model", ["chat-refused", "responses-refused"])
def test_an_error_is_compared_with_the_request_in_linear_time(running, model):
    """The gateway looks for what the error quotes of the request, before it makes a repair."""
    said = "Unsupported parameter: a is not supported, temperature is not permitted"
    running.upstream.on(model, json_response({"error": {"message": said}}, 400))

    def send_text(text):
        text *= 16
        body = raw_http.messages_body(model=model, messages=[{"role": "user", "content": text}])
        head = {"content-type": "application/json"}
        return measure_s(running, "POST", "/v1/messages", body, head)

    assert_quick(running, send_text, WORDS_OF_REQUESTS)
