"""Every request ends in exactly one row with the correct outcome."""

import http.client
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from tests.e2e import scenarios
from tests.e2e.clients.test_stream_bytes import TEXT, send_request
from tests.fakes.load.kill_process import wait_until_drained
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams import script_steps
from tests.fakes.upstreams.upstream import ScriptedUpstream

FIRST_EVENT = TEXT[: TEXT.index(b"\n\n") + 2]  # the first event; the upstream sends no other


@pytest.fixture
def own_gateway(tmp_path):
    """A gateway and an upstream for one test."""
    with ScriptedUpstream() as upstream:
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, CHAT_ROUTE)
        with Gateway(tmp_path / "own", config=config) as gateway:
            yield gateway, upstream


CHAT_ROUTE = scenarios.ROUTES.split("\n\n")[1]


@pytest.fixture(scope="module")
def chat_gateway(tmp_path_factory):
    """A gateway and an upstream for the tests that only send requests."""
    with ScriptedUpstream() as upstream:
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, CHAT_ROUTE)
        with Gateway(tmp_path_factory.mktemp("chat"), config=config) as gateway:
            yield gateway, upstream


def test_each_request_has_one_row_with_the_upstreams_token_counts(chat_gateway):
    gateway, upstream = chat_gateway
    before, called = set(gateway.rows()), len(upstream.requests)
    upstream.on("chat-fine", script_steps.stream(TEXT, "lines"))
    upstream.on("chat-cut", script_steps.stream(TEXT[:-200], ending=[script_steps.Close()]))
    upstream.on("chat-bad", script_steps.html_response(502))

    successful = [send_request(gateway, "chat-fine", stream=n % 2 == 0) for n in range(6)]
    cut, error_reply = send_request(gateway, "chat-cut"), send_request(gateway, "chat-bad")

    ids = [reply.headers["request-id"] for reply in (*successful, cut, error_reply)]
    rows = gateway.closed_rows(*ids)
    assert set(rows) - before == set(ids)
    assert len(upstream.requests) - called == len(ids)
    for each in ids[:6]:
        assert (rows[each]["outcome"], rows[each]["stop_reason"]) == ("completed", "end_turn")
        assert (rows[each]["input_tokens"], rows[each]["output_tokens"]) == (7, 2)
    for each in ids[6:]:
        assert (rows[each]["outcome"], rows[each]["stop_reason"]) == ("upstream_error", None)


def test_client_disconnect_releases_the_upstream(chat_gateway):
    gateway, upstream = chat_gateway
    upstream.on("chat-stalled", script_steps.stream(FIRST_EVENT, ending=[script_steps.Stall()]))

    request_id = disconnect_during_stream(gateway, "chat-stalled")

    upstream.wait_until(lambda requests: requests[-1].ending == "client_gone")
    assert gateway.closed_rows(request_id)[request_id]["outcome"] == "client_gone"


def disconnect_during_stream(gateway: Gateway, model: str) -> str:
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


@pytest.mark.slow  # in the fast lane, tests/e2e/recovery/test_kills.py kills a gateway under load
def test_twice_killed_gateway_loses_no_accepted_request(own_gateway):
    gateway, upstream = own_gateway
    upstream.on("chat-stalled", script_steps.stream(FIRST_EVENT, ending=[script_steps.Stall()]))
    for _ in range(2):
        before = len(upstream.requests)
        with ThreadPoolExecutor(5) as pool:
            for _ in range(5):
                pool.submit(_send_ignoring_errors, gateway)
            upstream.wait_until(lambda requests, expected=before + 5: len(requests) == expected)
            gateway.stop(signal.SIGKILL)

        gateway.start()

    wait_until_drained(gateway)
    rows = gateway.rows()
    assert {row["outcome"] for row in rows.values()} == {"interrupted"}
    assert len(rows) == len(upstream.requests) == 10


def _send_ignoring_errors(gateway: Gateway) -> None:
    with suppress(OSError, http.client.HTTPException):
        send_request(gateway, "chat-stalled")


@pytest.mark.slow  # tests/slow/faults/test_shutdown_drain.py drains thirty streams in the fast lane
def test_drain_ends_running_streams_with_an_error_and_a_row(own_gateway):
    gateway, upstream = own_gateway
    gateway.stop()
    gateway.environment["BRIDGE_DRAIN_S"] = "1"
    gateway.start()
    upstream.on("chat-stalled", script_steps.stream(FIRST_EVENT, ending=[script_steps.Stall()]))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(send_request, gateway, "chat-stalled")
        upstream.wait_until(lambda requests: [each.sent > 0 for each in requests] == [True])

        code = gateway.stop(signal.SIGTERM)

        reply = running.result(30)
    assert code == 0
    assert b"overloaded_error" in reply.body
    assert [row["outcome"] for row in gateway.rows().values()] == ["drained"]
