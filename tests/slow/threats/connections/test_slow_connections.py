"""No client occupies a connection forever, and many such clients do not stop other requests."""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.slow.faults.environment.sockets import Sockets, open_files
from tests.slow.threats import hostile_clients, raw_http
from tests.slow.threats.conftest import ROUTES, RunningGateway
from tests.waiting import until

OPEN_FILES = 1_024
PER_ADDRESS = 100
CLIENTS_PER_KIND = 3
"""Concurrent clients of each kind."""
FLOOD = 400
"""Connections of one address."""
LONGEST_S = 45
DATABASE_CONNECTIONS = 8  # of the gateway's threads, which open them when they need one
"""The deadlines below are 2 to 13 s; the rest is time for a loaded machine."""
KINDS = hostile_clients.kinds("")
ENVIRONMENT = {
    "BRIDGE_HEAD_TIMEOUT_S": "2",
    "BRIDGE_BODY_TIMEOUT_S": "2",
    "BRIDGE_WRITE_TIMEOUT_S": "2",
    "BRIDGE_KEEP_ALIVE_S": "3",
    "BRIDGE_MAX_BODY_BYTES": str(2**20),
    "BRIDGE_MAX_CONNECTIONS_PER_ADDRESS": str(PER_ADDRESS),
}


@pytest.fixture(scope="module")
def limited_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with a limit of 1,024 open files."""
    with ScriptedUpstream() as upstream:
        upstream.on("chat-x", upstream_scripts.chat())
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        process = Gateway(
            tmp_path_factory.mktemp("few_files"), config, ENVIRONMENT, open_files=OPEN_FILES
        )
        with process:
            yield RunningGateway(process, upstream)


def post(connection: http.client.HTTPConnection, gateway: Gateway) -> str:
    """Send a message with a key; return the request id."""
    connection.request("POST", "/v1/messages", raw_http.messages_body(), {"x-api-key": gateway.key})
    with connection.getresponse() as answer:
        assert answer.status == 200, answer.read()
        assert json.loads(answer.read())["type"] == "message"
        return str(answer.headers["request-id"])


def assert_serves_others(gateway: Gateway) -> str:
    """From another address, send a message and load the sign-in page; return the request id."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", gateway.port, timeout=60, source_address=("127.0.0.9", 0)
    )
    with contextlib.closing(connection):
        request_id = post(connection, gateway)
    connection = http.client.HTTPConnection(
        "127.0.0.1", gateway.port, timeout=60, source_address=("127.0.0.9", 0)
    )
    with contextlib.closing(connection):
        connection.request("GET", "/admin/login/")
        with connection.getresponse() as answer:
            assert answer.status == 200
            assert b"csrfmiddlewaretoken" in answer.read()
    return request_id


def wait_for_no_client(gateway: Gateway) -> None:
    deadline = time.monotonic() + LONGEST_S
    while occupied := Sockets.of(gateway.process.pid).at(gateway.port):
        assert time.monotonic() < deadline, occupied
        time.sleep(0.1)


def closed_by(gateway: Gateway, reason: str) -> float:
    """Return how many connections the gateway has closed for this reason."""
    name = f'bridge_connections_closed_total{{reason="{reason}"}} '
    metrics = gateway.request("GET", "/metrics").body.decode()
    return sum(
        float(line.removeprefix(name)) for line in metrics.splitlines() if line.startswith(name)
    )


def wait_until_closed_by_limit(gateway: Gateway, at_least: float) -> None:
    """Wait until the limit has closed this many connections; the metric may be a second old."""
    deadline = time.monotonic() + LONGEST_S
    while (found := closed_by(gateway, "limit_address")) < at_least:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_open_files_limit_is_raised_and_a_low_limit_is_logged(limited_gateway):
    pid = limited_gateway.process.process.pid
    limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
    soft = next(line.split()[3] for line in limits.splitlines() if "Max open files" in line)

    assert int(soft) == OPEN_FILES
    assert "the limit of 1024 open files allows 416 connections" in limited_gateway.process.log


class Occupied(NamedTuple):
    """The results of the clients of each kind and of the gateway."""

    clients: dict[str, list[hostile_clients.Client]]
    outcome: str  # of a message that was sent at the same time
    files_before: int  # open files of the gateway before the clients connected


@pytest.fixture(scope="module")
def occupied(limited_gateway: RunningGateway) -> Occupied:
    """Connect clients of all kinds, each kind from its own address, until the gateway closes them."""
    gateway = limited_gateway.process
    assert_serves_others(gateway)
    wait_for_no_client(gateway)
    files = len(open_files(gateway.process.pid))
    with contextlib.closing(hostile_clients.ClientGroup()) as clients_group:
        clients = {
            name: [
                clients_group.connect(gateway.port, f"127.0.1.{n}", kind)
                for _ in range(CLIENTS_PER_KIND)
            ]
            for n, (name, kind) in enumerate(hostile_clients.kinds(gateway.key).items(), 1)
        }
        clients_group.wait_until_closed(1.0)
        request_id = assert_serves_others(gateway)
        clients_group.wait_until_closed(LONGEST_S)
    wait_for_no_client(gateway)
    return Occupied(clients, gateway.closed_rows(request_id)[request_id]["outcome"], files)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", KINDS)
def test_gateway_closes_the_connection_of_each_hostile_client(occupied, kind):
    assert [client.open_s is None for client in occupied.clients[kind]] == [
        False
    ] * CLIENTS_PER_KIND


def test_other_clients_are_served_and_all_files_are_closed(occupied, limited_gateway):
    pid = limited_gateway.process.process.pid

    assert occupied.outcome == "completed"
    until(lambda: len(open_files(pid)) - occupied.files_before <= DATABASE_CONNECTIONS)


STATUSES = {
    "partial head": [408],
    "idle after a response": [200],
    "a byte of a head after a response": [200, 408],
    "an invalid byte": [200],
    "an invalid byte after the response": [200, 400],
    "401 without the body": [401],
    "401 and Expect": [401],
    "404 without the body": [404],
    "405 without the body": [405],
    "413 without the body": [413],
    "no body": [408],
    "Expect, and no body": [100, 408],
    "no form": [408],
    "a WebSocket without a session": [403],
    "a WebSocket on another path": [403],
    "an upgrade to h2c": [200],
    "CONNECT": [400],
    "a bad chunk": [400],
    "Connection: close": [200],
    "HTTP/1.0": [200],
    "half-closed": [200],
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", STATUSES)
def test_hostile_clients_get_these_statuses(occupied, kind):
    for client in occupied.clients[kind]:
        answer = raw_http.RawResponse(bytes(client.received), True, 0.0)
        assert answer.statuses[: len(STATUSES[kind])] == STATUSES[kind], answer.raw


def test_at_most_17_pipelined_requests_are_answered(occupied):
    for client in occupied.clients["pipelines endlessly"]:
        answer = raw_http.RawResponse(bytes(client.received), True, 0.0)
        assert answer.statuses == [200] * 17


@pytest.mark.repeated
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind",
    ["silent", *(pytest.param(kind, marks=pytest.mark.slow) for kind in (
        "a byte of a head after a response", "401 without the body", "a WebSocket with a length",
    ))],
)  # fmt: skip
def test_connections_of_one_address_are_limited(limited_gateway, kind):
    gateway = limited_gateway.process
    before = closed_by(gateway, "limit_address")
    with contextlib.closing(hostile_clients.ClientGroup()) as clients_group:
        for _ in range(FLOOD):
            clients_group.connect(
                gateway.port, "127.0.2.1", hostile_clients.kinds(gateway.key)[kind]
            )
        clients_group.wait_until_closed(20, allowed_open=PER_ADDRESS)
        wait_until_closed_by_limit(gateway, before + FLOOD - PER_ADDRESS)
        request_id = assert_serves_others(gateway)
        clients_group.wait_until_closed(LONGEST_S)

        assert clients_group.open_clients == []
        assert any(b"HTTP/1.1 503 " in client.received for client in clients_group.clients)
    assert gateway.closed_rows(request_id)[request_id]["outcome"] == "completed"
    wait_for_no_client(gateway)


@pytest.mark.timeout(300)
def test_open_connections_work_when_the_total_limit_is_reached(limited_gateway):
    gateway = limited_gateway.process
    silent = hostile_clients.kinds(gateway.key)["silent"]
    with (
        contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", gateway.port)
        ) as connection_in_use,
        contextlib.closing(hostile_clients.ClientGroup()) as clients_group,
    ):
        post(connection_in_use, gateway)
        for n in range(OPEN_FILES):
            clients_group.connect(gateway.port, f"127.0.3.{n % 8 + 1}", silent)
        clients_group.wait_until_closed(20, allowed_open=PER_ADDRESS * 8)
        request_id = post(connection_in_use, gateway)
        files = len(open_files(gateway.process.pid))
        clients_group.wait_until_closed(LONGEST_S)

        assert clients_group.open_clients == []
        assert files < OPEN_FILES * 3 / 4
    assert gateway.closed_rows(request_id)[request_id]["outcome"] == "completed"
    wait_for_no_client(gateway)
    assert_serves_others(gateway)


def test_connection_flood_is_counted_and_logged_in_few_lines(limited_gateway):
    gateway = limited_gateway.process
    lines = [line for line in gateway.log.splitlines() if "client connections closed" in line]

    for reason in ("limit_address", "limit_total", "timeout_head"):
        assert closed_by(gateway, reason) >= FLOOD - PER_ADDRESS
    assert len(lines) < 60
    assert "Traceback" not in gateway.log
    assert "out of system resource" not in gateway.log
