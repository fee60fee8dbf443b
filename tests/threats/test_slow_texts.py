"""Texts that a backtracking pattern would read for seconds, through the running gateway.

``tests/house/test_patterns.py`` judges each pattern; here are the places where texts come in.
"""

import json
import time

import pytest

from tests.fakes.steps import json_answer
from tests.proxy.gateway import scripts

from . import wire

SIZE = 60_000  # with its JSON it is within the 64 KB that are read of an error
HARMLESS = "x" * SIZE
GENEROUS = 20
"""Times what a harmless text takes; the patterns that were here took hundreds of times as long."""


def filled(word: str) -> str:
    return word * (SIZE // len(word))


def took_s(running, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> float:
    began = time.monotonic()
    running.process.ask(method, path, body, headers)
    return time.monotonic() - began


def is_quick(running, ask) -> None:
    """``ask(word)`` sends a text; the worst one takes about as long as a harmless one."""
    harmless = max(ask(HARMLESS) for _ in range(3))
    assert ask(None) < GENEROUS * harmless + 0.5
    running.is_well()


@pytest.mark.parametrize(("status", "field"), [(400, "message"), (404, "message"), (404, "param")])
@pytest.mark.parametrize(
    "word", ["model ", "a.", "a-", "a+", "eyJ-", "sk-", "://a:", "try again in 1", "input.1", "'\\", "to a"]
)  # fmt: skip
def test_an_upstream_s_error_is_read_in_linear_time(running, status, field, word):
    def ask(text):
        told = text if text is not None else filled(word)
        body = {"error": {"type": "invalid_request_error", field: told}}
        running.upstream.on("chat-slow", json_answer(body, status))
        head = {"content-type": "application/json"}
        return took_s(running, "POST", "/v1/messages", wire.question(model="chat-slow"), head)

    is_quick(running, ask)


def test_an_error_in_a_stream_is_read_in_linear_time(running):
    def ask(text):
        told = text if text is not None else filled("model ")
        event = scripts.sse({"error": {"message": told, "code": 404}})
        running.upstream.on("chat-slow", scripts.pieces([event]))
        head = {"content-type": "application/json"}
        return took_s(running, "POST", "/v1/messages", wire.question(model="chat-slow"), head)

    is_quick(running, ask)


@pytest.mark.parametrize(
    "header", ["x-gateway-tags", "user-agent", "anthropic-beta", "x-claude-code-session-id"]
)
@pytest.mark.parametrize("word", [" ", "a", "a/", "1", "a=", "session_"])
def test_a_client_s_header_is_read_in_linear_time(running, header, word):
    def ask(text):
        head = {header: text or filled(word)}
        return took_s(running, "GET", "/v1/models/x", None, head)

    is_quick(running, ask)


@pytest.mark.parametrize("start", ["/admin/r/", "/admin/", "/api/v1/", "/v1/organizations/", "/"])
@pytest.mark.parametrize("word", ["/", "a/", "/change/"])
def test_a_path_is_read_in_linear_time(running, start, word):
    """Before any key or session is asked for."""

    def ask(text):
        return took_s(running, "GET", start + (text or filled(word)) + "x", None, {"x-api-key": ""})

    is_quick(running, ask)


def test_more_stop_sequences_than_can_be_looked_for_are_refused(running):
    for sequences in (["STOP"] * 65, ["x" * 4_000, "y" * 97]):
        body = wire.question(model="chat-x", stop_sequences=sequences)
        reply = running.process.ask(
            "POST", "/v1/messages", body, {"content-type": "application/json"}
        )
        assert (reply.status, json.loads(reply.body)["error"]["type"]) == (
            400,
            "invalid_request_error",
        )
        assert "stop_sequences" in json.loads(reply.body)["error"]["message"]
    body = wire.question(model="chat-x", stop_sequences=["STOP"] * 64)
    assert running.process.ask("POST", "/v1/messages", body).status == 200
