"""No client holds a connection for ever, and no number of them stops the ledger or the admin."""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.upstream import ScriptedUpstream
from tests.faults.sockets import Sockets, open_files
from tests.proxy.gateway import scripts

from . import hostile, wire
from .conftest import ROUTES, Running

OPEN_FILES = 1_024
PER_ADDRESS = 100
EACH = 8
"""Clients of each kind at once."""
LONGEST_S = 45
"""Deadlines are 2 to 13 s below; the rest is patience with a busy machine."""
KINDS = hostile.kinds("")
ENVIRONMENT = {
    "BRIDGE_HEAD_TIMEOUT_S": "2",
    "BRIDGE_BODY_TIMEOUT_S": "2",
    "BRIDGE_WRITE_TIMEOUT_S": "2",
    "BRIDGE_KEEP_ALIVE_S": "3",
    "BRIDGE_MAX_BODY_BYTES": str(2**20),
    "BRIDGE_MAX_CONNECTIONS_PER_ADDRESS": str(PER_ADDRESS),
}


@pytest.fixture(scope="module")
def few_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway that may open 1,024 files."""
    with ScriptedUpstream() as upstream:
        upstream.on("chat-x", scripts.chat())
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        process = Gateway(
            tmp_path_factory.mktemp("few_files"), config, ENVIRONMENT, open_files=OPEN_FILES
        )
        with process:
            yield Running(process, upstream)


def post(connection: http.client.HTTPConnection, gateway: Gateway) -> str:
    """Send a message with a key; return its id."""
    connection.request("POST", "/v1/messages", wire.question(), {"x-api-key": gateway.key})
    with connection.getresponse() as answer:
        assert answer.status == 200, answer.read()
        assert json.loads(answer.read())["type"] == "message"
        return str(answer.headers["request-id"])


def serves_others(gateway: Gateway) -> str:
    """From another address: a message is answered, the admin shows its sign-in. Return its id."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", gateway.port, timeout=60, source_address=("127.0.0.9", 0)
    )
    with contextlib.closing(connection):
        ident = post(connection, gateway)
    connection = http.client.HTTPConnection(
        "127.0.0.1", gateway.port, timeout=60, source_address=("127.0.0.9", 0)
    )
    with contextlib.closing(connection):
        connection.request("GET", "/admin/login/")
        with connection.getresponse() as answer:
            assert answer.status == 200
            assert b"csrfmiddlewaretoken" in answer.read()
    return ident


def wait_for_no_client(gateway: Gateway) -> None:
    deadline = time.monotonic() + LONGEST_S
    while held := Sockets.of(gateway.process.pid).at(gateway.port):
        assert time.monotonic() < deadline, held
        time.sleep(0.1)


def test_the_limit_of_open_files_is_raised_and_a_low_one_is_logged(few_files):
    pid = few_files.process.process.pid
    limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
    soft = next(line.split()[3] for line in limits.splitlines() if "Max open files" in line)

    assert int(soft) == OPEN_FILES
    assert "the limit of 1024 open files allows 416 connections" in few_files.process.log


class Held(NamedTuple):
    """What became of the clients of each kind, and of the gateway."""

    clients: dict[str, list[hostile.Client]]
    outcome: str  # of a message that was sent meanwhile
    more_files: int  # that the gateway has open when all clients have left


@pytest.fixture(scope="module")
def held(few_files: Running) -> Held:
    """All kinds at once, each from an address of its own, until the gateway has closed them."""
    gateway = few_files.process
    serves_others(gateway)
    wait_for_no_client(gateway)
    files = len(open_files(gateway.process.pid))
    with contextlib.closing(hostile.Crowd()) as crowd:
        clients = {
            name: [crowd.connect(gateway.port, f"127.0.1.{n}", kind) for _ in range(EACH)]
            for n, (name, kind) in enumerate(hostile.kinds(gateway.key).items(), 1)
        }
        crowd.wait_until_closed(1.0)
        ident = serves_others(gateway)
        crowd.wait_until_closed(LONGEST_S)
    wait_for_no_client(gateway)
    more = len(open_files(gateway.process.pid)) - files
    return Held(clients, gateway.closed_rows(ident)[ident]["outcome"], more)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", KINDS)
def test_no_client_holds_a_connection(held, kind):
    assert [client.held_s is None for client in held.clients[kind]] == [False] * EACH


def test_others_are_served_meanwhile_and_every_file_is_closed(held):
    assert held.outcome == "completed"
    assert held.more_files <= 8  # databases of threads


STATUSES = {
    "half a head": [408],
    "idle after an answer": [200],
    "a byte of a head after an answer": [200, 408],
    "a byte that begins no head": [200],
    "a byte that begins no head, after the answer": [200, 400],
    "401, its body never comes": [401],
    "401 and Expect": [401],
    "404, its body never comes": [404],
    "405, its body never comes": [405],
    "413, its body never comes": [413],
    "a body that never comes": [408],
    "Expect, and no body": [100, 408],
    "a form that never comes": [408],
    "a WebSocket without a session": [403],
    "a WebSocket elsewhere": [403],
    "an upgrade to h2c": [200],
    "CONNECT": [400],
    "a bad chunk": [400],
    "Connection: close": [200],
    "HTTP/1.0": [200],
    "half-closed": [200],
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", STATUSES)
def test_what_they_are_answered(held, kind):
    for client in held.clients[kind]:
        answer = wire.Heard(bytes(client.received), True, 0.0)
        assert answer.statuses[: len(STATUSES[kind])] == STATUSES[kind], answer.raw


def test_at_most_17_pipelined_requests_are_answered(held):
    for client in held.clients["pipelines without end"]:
        answer = wire.Heard(bytes(client.received), True, 0.0)
        assert answer.statuses == [200] * 17


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind",
    ["silent", "a byte of a head after an answer", "401, its body never comes",
     "a WebSocket with a length"],
)  # fmt: skip
def test_four_hundred_of_one_address_hold_no_more_than_their_share(few_files, kind):
    gateway = few_files.process
    with contextlib.closing(hostile.Crowd()) as crowd:
        for _ in range(400):
            crowd.connect(gateway.port, "127.0.2.1", hostile.kinds(gateway.key)[kind])
        crowd.wait_until_closed(20, but=PER_ADDRESS)
        busy = len(Sockets.of(gateway.process.pid).busy(gateway.port))
        ident = serves_others(gateway)
        crowd.wait_until_closed(LONGEST_S)

        assert busy <= PER_ADDRESS
        assert crowd.held == []
        assert any(b"HTTP/1.1 503 " in client.received for client in crowd.clients)
    assert gateway.closed_rows(ident)[ident]["outcome"] == "completed"
    wait_for_no_client(gateway)


@pytest.mark.timeout(300)
def test_when_all_connections_are_taken_those_that_are_open_still_work(few_files):
    gateway = few_files.process
    silent = hostile.kinds(gateway.key)["silent"]
    with (
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.port)) as ours,
        contextlib.closing(hostile.Crowd()) as crowd,
    ):
        post(ours, gateway)
        for n in range(OPEN_FILES):
            crowd.connect(gateway.port, f"127.0.3.{n % 8 + 1}", silent)
        crowd.wait_until_closed(20, but=PER_ADDRESS * 8)
        ident = post(ours, gateway)
        files = len(open_files(gateway.process.pid))
        crowd.wait_until_closed(LONGEST_S)

        assert crowd.held == []
        assert files < OPEN_FILES * 3 / 4
    assert gateway.closed_rows(ident)[ident]["outcome"] == "completed"
    wait_for_no_client(gateway)
    serves_others(gateway)


def test_a_flood_is_counted_and_logged_in_few_lines(few_files):
    gateway = few_files.process
    metrics = gateway.ask("GET", "/metrics").body.decode()
    counted = {
        line.partition(" ")[0]: int(line.partition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("bridge_connections_closed_total{")
    }
    lines = [line for line in gateway.log.splitlines() if "client connections closed" in line]

    assert counted['bridge_connections_closed_total{reason="limit_address"}'] > 300
    assert counted['bridge_connections_closed_total{reason="limit_total"}'] > 300
    assert counted['bridge_connections_closed_total{reason="timeout_head"}'] > 300
    assert len(lines) < 60
    assert "Traceback" not in gateway.log
    assert "out of system resource" not in gateway.log
