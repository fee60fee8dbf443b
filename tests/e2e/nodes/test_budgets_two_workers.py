"""Budgets and limits of a gateway with two processes, also after a kill."""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes.load.crash_points import RestartedGateway
from tests.fakes.load.kill_process import reserved_port, wait_until_ready
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import Stall, WaitForGate, chunk, json_response, stream_head
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.waiting import until

POOR = ("POOR", "KILL", "CUTS")
"""Each test has a team with a budget of its own, because tests share a gateway."""

NAMES = (*POOR, "FAST")
SECRETS = {f"BRIDGE_KEY_{name}": f"sk-br-{name * 12}" for name in NAMES}
CONTROL = """
[[routes]]
model = "m"
targets = [{ upstream = "chat" }]

[[prices]]
upstream = "chat"
model = "m"
since = 2026-01-01
usd = { input = "0", output = "10" }

""" + "".join(
    f"""
[[teams]]
name = "{name.lower()}"
{'budgets = [{ usd = "0.004" }]' if name in POOR else "limits = { rpm = 6 }"}

[[keys]]
team = "{name.lower()}"
name = "k"
secret = {{ env = "BRIDGE_KEY_{name}" }}
"""
    for name in NAMES
)
REQUEST = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with Gateway(folder, config_for(upstream), workers=2, environment=SECRETS) as running:
        yield running


def config_for(upstream: ScriptedUpstream) -> str:
    return toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, CONTROL)


def send_request(gateway: Gateway, name: str) -> int:
    headers = {"x-api-key": SECRETS[f"BRIDGE_KEY_{name}"], "content-type": "application/json"}
    body = json.dumps(REQUEST).encode()
    return gateway.request("POST", "/v1/messages", body, headers, authorized=False).status


def send_concurrently(
    gateway: Gateway, upstream: ScriptedUpstream, name: str, size: int
) -> tuple[Counter[int], float]:
    """Send ``size`` concurrent requests; none gets a response before all are accepted or rejected.

    Return the count of each status and the seconds until all were accepted or rejected.
    """
    statuses: list[int] = []
    gate, before, start = threading.Event(), len(upstream.requests), time.monotonic()
    upstream.on("m", [WaitForGate(gate), *json_response(upstream_scripts.COMPLETION)])
    threads = [
        threading.Thread(target=lambda: statuses.append(send_request(gateway, name)))
        for _ in range(size)
    ]
    for thread in threads:
        thread.start()
    upstream.wait_until(lambda requests: len(requests) - before + len(statuses) == size)
    duration = time.monotonic() - start
    gate.set()
    for thread in threads:
        thread.join()
    return Counter(statuses), duration


def ledger_cost(gateway: Gateway, *names: str) -> int:
    """Return the cost of teams in the ledger, in nano-dollars."""
    path = gateway.folder / "data" / "ledger.sqlite3"
    of_team = "team = (SELECT ledger_id FROM proxy_team WHERE name = ?)"
    query = f"SELECT sum(cost_nanousd) FROM proxy_exchange WHERE {of_team}"  # noqa: S608 - constants
    with contextlib.closing(sqlite3.connect(path)) as connection:
        costs = [connection.execute(query, (name.lower(),)).fetchone()[0] for name in names]
    return sum(int(cost or 0) for cost in costs)


def counters(gateway: Gateway) -> tuple[int, int]:
    """Return the counters file's spent nano-dollars and its number of reservations."""
    path = gateway.folder / "data" / "counters.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (total,) = connection.execute("SELECT sum(spent) FROM sums").fetchone()
        (reservations,) = connection.execute("SELECT count(*) FROM requests").fetchone()
    return int(total or 0), int(reservations)


def wait_until_counted(gateway: Gateway, name: str, cost: int) -> None:
    """Wait until a team has this cost, and the counters agree with the ledger."""
    until(
        lambda: (
            ledger_cost(gateway, name) == cost
            and counters(gateway) == (ledger_cost(gateway, *POOR), 0)
        )
    )


def test_two_processes_accept_no_more_than_one(gateway: Gateway, upstream: ScriptedUpstream):
    assert send_concurrently(gateway, upstream, "POOR", 50)[0] == {200: 4, 402: 46}
    fast, duration = send_concurrently(gateway, upstream, "FAST", 20)
    assert fast.keys() == {200, 429}
    assert 6 <= fast[200] <= 6 + duration * 6 / 60  # tokens refilled during the requests

    wait_until_counted(gateway, "POOR", 4 * 50_000)


def test_reservations_of_a_killed_gateway_are_charged(gateway: Gateway, upstream: ScriptedUpstream):
    """The upstream may have processed the requests, so a hard budget charges their maximum cost."""
    before = len(upstream.requests)
    upstream.on("m", [stream_head(), chunk(b": wait\n\n"), Stall()])
    connections = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(4)]
    body = json.dumps({**REQUEST, "stream": True}).encode()
    for each in connections:
        head = f"host: g\r\nx-api-key: {SECRETS['BRIDGE_KEY_KILL']}\r\ncontent-length: {len(body)}"
        each.sendall(f"POST /v1/messages HTTP/1.1\r\n{head}\r\n\r\n".encode() + body)
    upstream.wait_until(lambda requests: len(requests) == before + 4)
    assert send_request(gateway, "KILL") == 402

    os.killpg(gateway.process.pid, signal.SIGKILL)
    gateway.process.wait(60)
    for each in connections:
        each.close()
    upstream.on("m", json_response(upstream_scripts.COMPLETION))
    gateway.start()

    wait_until_counted(gateway, "KILL", 4 * 1_000_000)
    assert send_request(gateway, "KILL") == 402
    assert send_request(gateway, "CUTS") == 200  # a team with room in its budget


def test_requests_cut_by_a_drain_are_charged(tmp_path: Path):
    with ScriptedUpstream() as upstream, reserved_port() as port:
        upstream.on("m", [Stall()])
        environment = {**SECRETS, "BRIDGE_DRAIN_S": "0.2"}
        gateway = RestartedGateway(
            tmp_path / "gateway", config_for(upstream), environment, port=port
        )
        gateway.prepare_python()
        with contextlib.closing(gateway), ThreadPoolExecutor(1) as client:
            gateway.start_child(None)
            assert wait_until_ready(gateway, 60), gateway.log
            status = client.submit(send_request, gateway, "CUTS")
            upstream.wait_until(lambda requests: len(requests) == 1)

            gateway.kill(signal.SIGTERM)

            assert status.result(60) == 529
            gateway.start_child(None)
            wait_until_counted(gateway, "CUTS", 1_000_000)
