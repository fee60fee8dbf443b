"""Headers and rows tell of the upstream that answered, and of none that was tried before it."""

import socket
from collections.abc import Callable, Iterator

import pytest

from proxy.models import ApiKey, Team
from tests.fakes.steps import LAST_CHUNK, Script, chunk, json_answer, stream_head
from tests.fakes.upstream import Asked, ScriptedUpstream

from . import scripts
from .browser import Browser, read_until
from .conftest import add_route, add_upstream, message, row

OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
TOLD_BY_FIRST = {
    "request-id": "req_first",
    "anthropic-organization-id": "org",
    "anthropic-ratelimit-requests-limit": "9",
    "anthropic-odd": "first",
}
FIRST: Script = [
    stream_head(TOLD_BY_FIRST), chunk(scripts.sse(OVERLOADED, "error")), LAST_CHUNK
]  # fmt: skip
"""A failure that comes in a 200, whose headers were taken for the client already."""


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
        sock.bind(("127.0.0.1", 0))  # and kept, so that nobody else is given it
        yield sock.getsockname()[1]


@pytest.fixture
def turns(
    gateway: Browser, scripted: ScriptedUpstream, reload, unused: int
) -> Iterator[Callable[[Script], None]]:
    """Routes ``turns-*`` and ``nobody-*``: an Anthropic upstream, then Chat or a closed port."""
    said: dict[str, Script] = {"turn-first": FIRST}
    first = add_upstream("turn-first", "anthropic", f"{scripted.url}/turn-first", "anthropic")
    second = add_upstream("turn-second", "chat", f"{scripted.url}/turn-second")
    nobody = add_upstream("turn-nobody", "chat", f"http://127.0.0.1:{unused}/v1")
    routes = [add_route("turns-*", first, second), add_route("nobody-*", first, nobody)]
    reload()

    def choose(asked: Asked) -> Script | None:
        return said.get(asked.path.split("/")[1])

    scripted.choose(choose)
    yield lambda script: said.update({"turn-second": script})
    scripted.choose(lambda _: None)
    for made in (*routes, first, second, nobody):
        made.delete()
    reload()


@pytest.mark.parametrize(
    ("second", "outcome"),
    [(scripts.chat(), "completed"), (json_answer({"error": "no"}, 500), "upstream_error")],
    ids=["answers", "fails"],
)
def test_what_the_first_one_told_of_itself_is_taken_back(
    gateway: Browser, turns: Callable[[Script], None], second: Script, outcome: str
):
    turns(second)

    reply = gateway.post(message("turns-x", stream=True))

    row(reply.id, outcome=outcome, upstream="turn-second", upstream_request_id="")
    assert not {"x-upstream-request-id", *TOLD_BY_FIRST} & (reply.headers.keys() - {"request-id"})


def test_nobody_s_answer_has_nobody_s_name(gateway: Browser, turns: Callable[[Script], None]):
    reply = gateway.post(message("nobody-x", stream=True))

    row(reply.id, upstream="turn-nobody", upstream_status=None, upstream_request_id="")
    assert "x-upstream-request-id" not in reply.headers


def test_the_only_one_is_named_by_its_error(gateway: Browser, scripted: ScriptedUpstream):
    scripted.on("anthropic-alone", FIRST)

    reply = gateway.post(message("anthropic-alone", stream=True))

    assert (reply.status, reply.headers["x-upstream-request-id"]) == (529, "req_first")
    row(reply.id, upstream_request_id="req_first")


@pytest.mark.parametrize("status", [200, 429])
def test_our_own_limits_are_told_once_and_win(
    gateway: Browser, scripted: ScriptedUpstream, reload, status: int
):
    team = Team.objects.create(name=f"measured-{status}", limits={"rpm": 7})
    _, secret = ApiKey.issue(team, "ada", scopes=["messages"])
    reload()
    body = OVERLOADED if status == 429 else WHOLE
    scripted.on("anthropic-limited", json_answer(body, status, TOLD_BY_FIRST))

    with gateway.open(message("anthropic-limited"), x_api_key=secret) as client:
        head = read_until(client, b"\r\n\r\n").decode().lower()

    assert f"http/1.1 {status} " in head
    assert head.count("anthropic-ratelimit-requests-limit:") == 1
    assert "anthropic-ratelimit-requests-limit: 7\r\n" in head
    assert "anthropic-odd: first\r\n" in head


def test_a_count_tells_our_own_limits_as_well(gateway: Browser, scripted: ScriptedUpstream, reload):
    team = Team.objects.create(name="counted-out", limits={"rpm": 7})
    _, secret = ApiKey.issue(team, "ada", scopes=["messages"])
    reload()
    scripted.on("anthropic-count-limit", json_answer({"input_tokens": 7}, 200, TOLD_BY_FIRST))

    asked = message("anthropic-count-limit")
    reply = gateway.post(asked, "/v1/messages/count_tokens", x_api_key=secret)

    assert reply.headers["anthropic-ratelimit-requests-limit"] == "7"
    assert reply.headers["x-upstream-request-id"] == "req_first"
