"""Rate limit headers of OpenAI upstreams are converted to Anthropic's names."""

from datetime import UTC, datetime, timedelta

from proxy.gateway.upstream.client import map_rate_limit_headers
from tests.fakes.upstreams.script_steps import response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway.conftest import message
from tests.proxy.gateway.http_client import GatewayClient

OPENAI = {
    "x-ratelimit-limit-requests": "500",
    "x-ratelimit-remaining-requests": "499",
    "x-ratelimit-reset-requests": "120ms",
    "x-ratelimit-limit-tokens": "30000",
    "x-ratelimit-remaining-tokens": "29000",
    "x-ratelimit-reset-tokens": "6m0s",
}
OURS = ((b"anthropic-ratelimit-requests-limit", b"7"),)


def converted(upstream, ours=()):
    headers = map_rate_limit_headers([*ours], upstream)
    return {name.decode(): text.decode() for name, text in headers}


def test_headers_get_anthropic_s_names_and_a_reset_timestamp():
    before = datetime.now(UTC).replace(microsecond=0)

    headers = converted(OPENAI)

    resets = {name: text for name, text in headers.items() if name.endswith("-reset")}
    assert {name: text for name, text in headers.items() if name not in resets} == {
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


@for_each("text", ["", "soon", "-1", "1e9", "9" * 16, "٣", "1\r\nx: y"])
def test_a_value_that_is_not_a_number_is_left_out(text):
    assert converted({"x-ratelimit-limit-requests": text}) == {}


@for_each("text", ["", "soon", "9" * 400 + "s", "99999999999h"])
def test_a_value_that_is_not_a_duration_is_left_out(text):
    assert converted({"x-ratelimit-reset-tokens": text}) == {}


def test_the_gateway_s_own_limits_take_precedence():
    headers = converted(OPENAI, ours=OURS)

    assert headers["anthropic-ratelimit-requests-limit"] == "7"
    assert headers["anthropic-ratelimit-tokens-limit"] == "30000"


def test_an_upstream_without_rate_limit_headers_adds_none():
    assert map_rate_limit_headers([*OURS], {"x-request-id": "r"}) == [*OURS]


@for_each("status", [200, 429])
def test_a_client_receives_the_converted_headers(
    gateway: GatewayClient, scripted: ScriptedUpstream, status: int
):
    body = b'{"choices":[{"message":{"content":"Hi."},"finish_reason":"stop"}]}'
    scripted.on("chat-limits", response(status, body, "application/json", OPENAI))

    reply = gateway.post(message("chat-limits"))

    assert reply.status == status
    assert reply.headers["anthropic-ratelimit-requests-limit"] == "500"
    assert reply.headers["anthropic-ratelimit-input-tokens-remaining"] == "29000"
    assert "x-ratelimit-limit-requests" not in reply.headers
