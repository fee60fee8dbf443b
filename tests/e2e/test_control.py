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
from tests.fakes.steps import Sleep, Stall, chunk, json_answer, stream_head
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
ROOM_AGAIN_WITHIN_S = 30


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


def crowd(gateway: Gateway, name: str, size: int) -> Counter[int]:
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: seen.append(ask(gateway, name))) for _ in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Counter(seen)


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


def until(condition, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


def test_two_processes_let_in_no_more_than_one(gateway: Gateway, player: ScriptedUpstream):
    player.on("m", [Sleep(1), *json_answer(scripts.COMPLETION)])

    assert crowd(gateway, "POOR", 50) == {200: 4, 402: 46}
    assert crowd(gateway, "FAST", 20) == {200: 6, 429: 14}

    until(lambda: counted(gateway)[1] == 0, 20)
    assert counted(gateway)[0] == spent(gateway, "poor") == 4 * 50_000


def test_what_a_killed_gateway_had_reserved_comes_back(gateway: Gateway, player: ScriptedUpstream):
    player.on("m", [stream_head(), chunk(b": wait\n\n"), Stall()])
    held = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(4)]
    body = json.dumps({**ASKED, "stream": True}).encode()
    for each in held:
        head = f"host: g\r\nx-api-key: {SECRETS['BRIDGE_KEY_POOR']}\r\ncontent-length: {len(body)}"
        each.sendall(f"POST /v1/messages HTTP/1.1\r\n{head}\r\n\r\n".encode() + body)
    player.wait_until(lambda asked: len(asked) == 4, within_s=30)
    assert ask(gateway, "POOR") == 402

    os.killpg(gateway.process.pid, signal.SIGKILL)
    gateway.process.wait(10)
    for each in held:
        each.close()
    player.on("m", json_answer(scripts.COMPLETION))
    gateway.start()

    until(lambda: ask(gateway, "POOR") == 200, ROOM_AGAIN_WITHIN_S)
    until(lambda: counted(gateway)[1] == 0, 30)
    assert counted(gateway)[0] == spent(gateway, "poor")
