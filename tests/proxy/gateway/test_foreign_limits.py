"""Rate limit headers of OpenAI-like upstreams, told in Anthropic's words."""

from datetime import UTC, datetime, timedelta

import pytest

from proxy.gateway.foreign_limits import told_limits
from tests.fakes.steps import answer
from tests.fakes.upstream import ScriptedUpstream

from .browser import Browser
from .conftest import message

OPENAI = {
    "x-ratelimit-limit-requests": "500",
    "x-ratelimit-remaining-requests": "499",
    "x-ratelimit-reset-requests": "120ms",
    "x-ratelimit-limit-tokens": "30000",
    "x-ratelimit-remaining-tokens": "29000",
    "x-ratelimit-reset-tokens": "6m0s",
}
OURS = ((b"anthropic-ratelimit-requests-limit", b"7"),)


def told(upstream, ours=()):
    headers = told_limits([*ours], upstream)
    return {name.decode(): text.decode() for name, text in headers}


def test_buckets_have_anthropic_s_names_and_an_instant_of_their_reset():
    before = datetime.now(UTC).replace(microsecond=0)

    said = told(OPENAI)

    resets = {name: text for name, text in said.items() if name.endswith("-reset")}
    assert {name: text for name, text in said.items() if name not in resets} == {
        "anthropic-ratelimit-requests-limit": "500",
        "anthropic-ratelimit-requests-remaining": "499",
        "anthropic-ratelimit-tokens-limit": "30000",
        "anthropic-ratelimit-tokens-remaining": "29000",
        "anthropic-ratelimit-input-tokens-limit": "30000",
        "anthropic-ratelimit-input-tokens-remaining": "29000",
    }
    assert len(resets) == 3
    reset = datetime.fromisoformat(resets["anthropic-ratelimit-tokens-reset"])
    assert timedelta(0) <= reset - before - timedelta(minutes=6) < timedelta(minutes=5)


@pytest.mark.parametrize("text", ["", "soon", "-1", "1e9", "9" * 16, "٣", "1\r\nx: y"])
def test_what_is_no_number_is_not_told(text):
    assert told({"x-ratelimit-limit-requests": text}) == {}


@pytest.mark.parametrize("text", ["", "soon", "9" * 400 + "s", "99999999999h"])
def test_what_is_no_duration_is_not_told(text):
    assert told({"x-ratelimit-reset-tokens": text}) == {}


def test_limits_of_this_gateway_win():
    said = told(OPENAI, ours=OURS)

    assert said["anthropic-ratelimit-requests-limit"] == "7"
    assert said["anthropic-ratelimit-tokens-limit"] == "30000"


def test_whoever_tells_none_adds_none():
    assert told_limits([*OURS], {"x-request-id": "r"}) == [*OURS]


@pytest.mark.parametrize("status", [200, 429])
def test_a_client_hears_them(gateway: Browser, scripted: ScriptedUpstream, status: int):
    body = b'{"choices":[{"message":{"content":"Hi."},"finish_reason":"stop"}]}'
    scripted.on("chat-limits", answer(status, body, "application/json", OPENAI))

    reply = gateway.post(message("chat-limits"))

    assert reply.status == status
    assert reply.headers["anthropic-ratelimit-requests-limit"] == "500"
    assert reply.headers["anthropic-ratelimit-input-tokens-remaining"] == "29000"
    assert "x-ratelimit-limit-requests" not in reply.headers
