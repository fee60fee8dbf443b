"""A start after a death with ten thousand requests under way (G16).

``BRIDGE_TEST_OPEN_ROWS`` says how many, ``BRIDGE_TEST_SPOOL_MB`` how much their bodies weigh. The
promise is a start within 15 s and all rows final within ten; the bounds are ten and thirty times as much,
for they must not judge the machine.
``--log-cli-level INFO`` shows what it took.
"""

import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.fakes.gateway import REPOSITORY, Gateway, toml_for
from tests.fakes.killing import wait_until_drained
from tests.faults.ledger import SqliteBooks
from tests.proxy.record.driver import Driver

log = logging.getLogger(__name__)
OPEN_ROWS = int(os.environ.get("BRIDGE_TEST_OPEN_ROWS", "10000"))
SPOOL_MB = int(os.environ.get("BRIDGE_TEST_SPOOL_MB", "0"))
READY_S, FINAL_S = 10 * 15.0, 30 * 10.0
LIFE = """
import asyncio, os, random, signal, sys, time
import django
django.setup()
from proxy.record.recorder import recorder
from tests.proxy.record.making import body, opening
rows, weight = map(int, sys.argv[1:])
words = random.Random(1)

def one(number):
    said = "Hello" if not weight else words.randbytes(weight // 2).hex()
    return recorder.open(opening(number, created=time.time(), body=body(said)))

async def live():
    for first in range(0, rows, 100):
        await asyncio.gather(*(one(number) for number in range(first, first + 100)))
    os.kill(os.getpid(), signal.SIGKILL)

recorder.start()
asyncio.run(live())
"""
"""As many records as are asked for, each durable before the next hundred, and the end."""
ROUTE = """
[[routes]]
model = "x"
targets = [{ upstream = "chat" }]
"""


@pytest.mark.timeout(900)
def test_ten_thousand_open_requests_are_final_soon_after_a_start(tmp_path) -> None:
    folder = tmp_path / "gateway"
    folder.mkdir()
    die_with(Driver(folder / "data"))
    config = toml_for({"chat": {"dialect": "chat", "base_url": "http://127.0.0.1:9/v1"}}, ROUTE)
    gateway = Gateway(folder, config=config, ready_within_s=READY_S)

    began = time.monotonic()
    with gateway:
        ready_s = time.monotonic() - began
        wait_until_drained(gateway, within_s=FINAL_S)
        final_s = time.monotonic() - began - ready_s
        reply = gateway.ask("GET", "/v1/models")

    log.info("ready after %.1f s, all final after %.1f s more", ready_s, final_s)
    books = SqliteBooks(folder / "data" / "ledger.sqlite3")
    ends = books.select(
        "SELECT state, outcome, status, count(*) AS n FROM proxy_exchange GROUP BY 1, 2, 3"
    )
    assert [tuple(each.values()) for each in ends] == [("closed", "interrupted", 0, OPEN_ROWS)]
    assert reply.status == 200


def die_with(record: Driver) -> None:
    """Open that many exchanges in a process of their own, which then ends as by kill -9."""
    weight = SPOOL_MB * 2**20 // OPEN_ROWS
    ended = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", LIFE, str(OPEN_ROWS), str(weight)],
        env=record.environment, cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr
