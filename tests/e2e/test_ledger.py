"""Every way out of a request ends in exactly one row, and the row says what really happened."""

import http.client
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from tests.fakes import steps
from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.upstream import ScriptedUpstream

from . import plays
from .test_wire import TEXT, ask

HELD = TEXT[: TEXT.index(b"\n\n") + 2]  # the first event; silence follows it


@pytest.fixture
def own(tmp_path):
    """An upstream and a gateway that no other test shares."""
    with ScriptedUpstream() as player:
        config = toml_for({"chat": {"dialect": "chat", "base_url": player.base_url}}, CHAT_ROUTE)
        with Gateway(tmp_path / "own", config=config) as gateway:
            yield gateway, player


CHAT_ROUTE = plays.ROUTES.split("\n\n")[1]


def test_every_request_has_one_row_with_the_upstreams_own_numbers(own):
    gateway, player = own
    player.on("chat-fine", steps.stream(TEXT, "lines"))
    player.on("chat-torn", steps.stream(TEXT[:-200], ending=[steps.Close()]))
    player.on("chat-bad", steps.html_answer(502))

    fine = [ask(gateway, "chat-fine", stream=n % 2 == 0) for n in range(6)]
    torn, bad = ask(gateway, "chat-torn"), ask(gateway, "chat-bad")

    ids = [reply.headers["request-id"] for reply in (*fine, torn, bad)]
    rows = gateway.closed_rows(*ids)
    assert set(rows) == set(ids)
    assert len(player.asked) == len(ids)
    for each in ids[:6]:
        assert (rows[each]["outcome"], rows[each]["stop_reason"]) == ("completed", "end_turn")
        assert (rows[each]["input_tokens"], rows[each]["output_tokens"]) == (7, 2)
    for each in ids[6:]:
        assert (rows[each]["outcome"], rows[each]["stop_reason"]) == ("upstream_error", None)


def test_a_client_that_leaves_frees_the_upstream_at_once(own):
    gateway, player = own
    player.on("chat-held", steps.stream(HELD, ending=[steps.Stall()]))

    request_id = leave_in_the_middle(gateway, "chat-held")

    player.wait_until(lambda asked: [each.ending for each in asked] == ["client_gone"])
    assert gateway.closed_rows(request_id)[request_id]["outcome"] == "client_gone"


def leave_in_the_middle(gateway: Gateway, model: str) -> str:
    body = json.dumps(
        {
            "model": model,
            "max_tokens": 9,
            "stream": True,
            "messages": [{"role": "user", "content": "Hi"}],
        }
    )
    headers = {"x-api-key": gateway.key, "content-type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)) as connection:
        connection.request("POST", "/v1/messages", body, headers)
        with connection.getresponse() as answer:
            assert b"message_start" in answer.readline()
            return answer.headers["request-id"]


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_killed_gateway_loses_no_accepted_request(own, rounds):
    gateway, player = own
    player.on("chat-held", steps.stream(HELD, ending=[steps.Stall()]))
    for _ in range(rounds):
        before = len(player.asked)
        with ThreadPoolExecutor(5) as pool:
            for _ in range(5):
                pool.submit(_ignore_the_end, gateway)
            player.wait_until(lambda asked, want=before + 5: len(asked) == want)
            gateway.stop(signal.SIGKILL)

        gateway.start()

    deadline = time.monotonic() + 90
    while {row["outcome"] for row in gateway.rows().values()} != {"interrupted"}:
        assert time.monotonic() < deadline, gateway.rows()
        time.sleep(0.2)
    assert len(gateway.rows()) == len(player.asked) == 5 * rounds


def _ignore_the_end(gateway: Gateway) -> None:
    with suppress(OSError, http.client.HTTPException):
        ask(gateway, "chat-held")


def test_a_drain_ends_running_streams_with_an_error_and_a_row(own):
    gateway, player = own
    gateway.stop()
    gateway.environment["BRIDGE_DRAIN_S"] = "1"
    gateway.start()
    player.on("chat-held", steps.stream(HELD, ending=[steps.Stall()]))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, gateway, "chat-held")
        player.wait_until(lambda asked: [each.sent > 0 for each in asked] == [True])

        code = gateway.stop(signal.SIGTERM)

        reply = running.result(30)
    assert code == 0
    assert b"overloaded_error" in reply.body
    assert [row["outcome"] for row in gateway.rows().values()] == ["drained"]
