"""Headers and rows contain data of the upstream that answered, not of earlier attempts."""

import socket
from collections.abc import Callable, Iterator

import pytest

from proxy.models import ApiKey, Team
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Script, chunk, json_response, stream_head
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message, row
from tests.proxy.gateway.http_client import GatewayClient, read_until

OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
HEADERS_OF_FIRST = {
    "request-id": "req_first",
    "anthropic-organization-id": "org",
    "anthropic-ratelimit-requests-limit": "9",
    "anthropic-extra": "first",
}
FIRST: Script = [
    stream_head(HEADERS_OF_FIRST), chunk(upstream_scripts.sse(OVERLOADED, "error")), LAST_CHUNK
]  # fmt: skip
"""An error event in a response of status 200, whose headers were copied already."""


WHOLE = {
    "id": "msg_upstream",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "Hi"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 12, "output_tokens": 5},
}


@pytest.fixture
def unused() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # stays bound, so that no other process gets it
        yield sock.getsockname()[1]


@pytest.fixture
def turns(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload, unused: int
) -> Iterator[Callable[[Script], None]]:
    """Routes ``turns-*`` and ``closed-*``: an Anthropic upstream, then Chat or a closed port."""
    scripts: dict[str, Script] = {"turn-first": FIRST}
    first = add_upstream("turn-first", "anthropic", f"{scripted.url}/turn-first", "anthropic")
    second = add_upstream("turn-second", "chat", f"{scripted.url}/turn-second")
    closed = add_upstream("turn-closed", "chat", f"http://127.0.0.1:{unused}/v1")
    routes = [add_route("turns-*", first, second), add_route("closed-*", first, closed)]
    reload()

    def choose(request: ReceivedRequest) -> Script | None:
        return scripts.get(request.path.split("/")[1])

    scripted.choose(choose)
    yield lambda script: scripts.update({"turn-second": script})
    scripted.choose(lambda _: None)
    for row_to_delete in (*routes, first, second, closed):
        row_to_delete.delete()
    reload()


@pytest.mark.parametrize(
    ("second", "outcome"),
    [
        (upstream_scripts.chat(), "completed"),
        (json_response({"error": "no"}, 500), "upstream_error"),
    ],
    ids=["answers", "fails"],
)
def test_the_headers_of_the_first_attempt_are_removed(
    gateway: GatewayClient, turns: Callable[[Script], None], second: Script, outcome: str
):
    turns(second)

    reply = gateway.post(message("turns-x", stream=True))

    row(reply.id, outcome=outcome, upstream="turn-second", upstream_request_id="")
    assert not {"x-upstream-request-id", *HEADERS_OF_FIRST} & (
        reply.headers.keys() - {"request-id"}
    )


def test_without_an_upstream_response_no_upstream_id_is_sent(
    gateway: GatewayClient, turns: Callable[[Script], None]
):
    reply = gateway.post(message("closed-x", stream=True))

    row(reply.id, upstream="turn-closed", upstream_status=None, upstream_request_id="")
    assert "x-upstream-request-id" not in reply.headers


def test_the_error_of_a_single_target_has_its_request_id(
    gateway: GatewayClient, scripted: ScriptedUpstream
):
    scripted.on("anthropic-alone", FIRST)

    reply = gateway.post(message("anthropic-alone", stream=True))

    assert (reply.status, reply.headers["x-upstream-request-id"]) == (529, "req_first")
    row(reply.id, upstream_request_id="req_first")


@for_each("status", [200, 429])
def test_the_gateway_s_rate_limit_headers_replace_the_upstream_s(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload, status: int
):
    team = Team.objects.create(name=f"measured-{status}", limits={"rpm": 7})
    _, secret = ApiKey.issue(team, "ada", scopes=["messages"])
    reload()
    body = OVERLOADED if status == 429 else WHOLE
    scripted.on("anthropic-limited", json_response(body, status, HEADERS_OF_FIRST))

    with gateway.open(message("anthropic-limited"), x_api_key=secret) as client:
        head = read_until(client, b"\r\n\r\n").decode().lower()

    assert f"http/1.1 {status} " in head
    assert head.count("anthropic-ratelimit-requests-limit:") == 1
    assert "anthropic-ratelimit-requests-limit: 7\r\n" in head
    assert "anthropic-extra: first\r\n" in head


def test_count_tokens_sends_the_gateway_s_rate_limit_headers(
    gateway: GatewayClient, scripted: ScriptedUpstream, reload
):
    team = Team.objects.create(name="counted-out", limits={"rpm": 7})
    _, secret = ApiKey.issue(team, "ada", scopes=["messages"])
    reload()
    scripted.on("anthropic-count-limit", json_response({"input_tokens": 7}, 200, HEADERS_OF_FIRST))

    body = message("anthropic-count-limit")
    reply = gateway.post(body, "/v1/messages/count_tokens", x_api_key=secret)

    assert reply.headers["anthropic-ratelimit-requests-limit"] == "7"
    assert reply.headers["x-upstream-request-id"] == "req_first"
