"""Budgets and limits of a gateway of two processes, also when all of it is killed."""

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
from pathlib import Path

import pytest

from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.steps import Hold, Stall, chunk, json_answer, stream_head
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts

SECRETS = {f"BRIDGE_KEY_{name}": f"sk-br-{name * 12}" for name in ("RICH", "POOR", "FAST")}
CONTROL = """
[[routes]]
model = "m"
targets = [{ upstream = "chat" }]

[[prices]]
upstream = "chat"
model = "m"
since = 2026-01-01
usd = { input = "0", output = "10" }

[[teams]]
name = "poor"
budgets = [{ usd = "0.004" }]

[[teams]]
name = "fast"
limits = { rpm = 6 }

[[keys]]
team = "poor"
name = "k"
secret = { env = "BRIDGE_KEY_POOR" }

[[keys]]
team = "fast"
name = "k"
secret = { env = "BRIDGE_KEY_FAST" }
"""
ASKED = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}
WITHIN_S = 90


@pytest.fixture
def player() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture
def gateway(player: ScriptedUpstream, tmp_path: Path) -> Iterator[Gateway]:
    config = toml_for({"chat": {"dialect": "chat", "base_url": player.base_url}}, CONTROL)
    made = Gateway(tmp_path / "gateway", config=config, workers=2, environment=SECRETS)
    with made as running:
        yield running


def ask(gateway: Gateway, name: str) -> int:
    headers = {"x-api-key": SECRETS[f"BRIDGE_KEY_{name}"], "content-type": "application/json"}
    body = json.dumps(ASKED).encode()
    return gateway.ask("POST", "/v1/messages", body, headers, authorised=False).status


def crowd(
    gateway: Gateway, player: ScriptedUpstream, name: str, size: int
) -> tuple[Counter[int], float]:
    """So many at once, none of them answered before all were at the door; and how long it took."""
    seen: list[int] = []
    gate, before, began = threading.Event(), len(player.asked), time.monotonic()
    player.on("m", [Hold(gate), *json_answer(scripts.COMPLETION)])
    threads = [
        threading.Thread(target=lambda: seen.append(ask(gateway, name))) for _ in range(size)
    ]
    for thread in threads:
        thread.start()
    player.wait_until(lambda asked: len(asked) - before + len(seen) == size)
    lasted = time.monotonic() - began
    gate.set()
    for thread in threads:
        thread.join()
    return Counter(seen), lasted


def spent(gateway: Gateway, team: str) -> int:
    """Nano-dollars, as the ledger has them."""
    path = gateway.folder / "data" / "ledger.sqlite3"
    question = "SELECT sum(cost_nanousd) FROM proxy_exchange WHERE team = ?"
    with contextlib.closing(sqlite3.connect(path)) as link:
        (total,) = link.execute(question, (team,)).fetchone()
    return int(total or 0)


def counted(gateway: Gateway) -> tuple[int, int]:
    """Spent in nano-dollars, and how many holds there are, as the file has it."""
    path = gateway.folder / "data" / "counters.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as link:
        (total,) = link.execute("SELECT sum(spent) FROM counters").fetchone()
        (holds,) = link.execute("SELECT count(*) FROM holds").fetchone()
    return int(total or 0), int(holds)


def until(condition) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


def test_two_processes_let_in_no_more_than_one(gateway: Gateway, player: ScriptedUpstream):
    assert crowd(gateway, player, "POOR", 50)[0] == {200: 4, 402: 46}
    fast, lasted = crowd(gateway, player, "FAST", 20)
    assert fast.keys() == {200, 429}
    assert 6 <= fast[200] <= 6 + lasted * 6 / 60  # what has come back meanwhile

    until(lambda: (spent(gateway, "poor"), 0) == counted(gateway))
    assert spent(gateway, "poor") == 4 * 50_000


def test_what_a_killed_gateway_had_reserved_is_charged(gateway: Gateway, player: ScriptedUpstream):
    """The upstream may have answered all of it: a hard budget counts what may have been spent."""
    player.on("m", [stream_head(), chunk(b": wait\n\n"), Stall()])
    held = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(4)]
    body = json.dumps({**ASKED, "stream": True}).encode()
    for each in held:
        head = f"host: g\r\nx-api-key: {SECRETS['BRIDGE_KEY_POOR']}\r\ncontent-length: {len(body)}"
        each.sendall(f"POST /v1/messages HTTP/1.1\r\n{head}\r\n\r\n".encode() + body)
    player.wait_until(lambda asked: len(asked) == 4)
    assert ask(gateway, "POOR") == 402

    os.killpg(gateway.process.pid, signal.SIGKILL)
    gateway.process.wait(60)
    for each in held:
        each.close()
    player.on("m", json_answer(scripts.COMPLETION))
    gateway.start()

    until(lambda: (spent(gateway, "poor"), 0) == counted(gateway) == (4 * 1_000_000, 0))
    assert ask(gateway, "POOR") == 402
    assert ask(gateway, "FAST") == 200


def test_what_a_drained_gateway_cut_off_is_charged(player: ScriptedUpstream, tmp_path: Path):
    config = toml_for({"chat": {"dialect": "chat", "base_url": player.base_url}}, CONTROL)
    environment = {**SECRETS, "BRIDGE_DRAIN_S": "0.2"}
    player.on("m", [Stall()])
    with Gateway(tmp_path / "gateway", config=config, environment=environment) as gateway:
        seen: list[int] = []
        client = threading.Thread(target=lambda: seen.append(ask(gateway, "POOR")))
        client.start()
        player.wait_until(lambda asked: len(asked) == 1)

        assert gateway.stop() == 0
        client.join()

        assert seen == [529]
        gateway.start()
        until(lambda: (spent(gateway, "poor"), 0) == counted(gateway) == (1_000_000, 0))
