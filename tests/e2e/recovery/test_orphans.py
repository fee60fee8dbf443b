"""A start after a kill with a thousand running requests, in the slow lane ten thousand.

``BRIDGE_TEST_OPEN_ROWS`` sets their number, ``BRIDGE_TEST_JOURNAL_MB`` the size of their bodies. The
promise is a start within 15 s and all rows closed within 10 s; the test allows ten and thirty times
as much for a loaded machine. ``--log-cli-level INFO`` prints the measured times.
"""

import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.fakes.load.kill_process import wait_until_drained
from tests.fakes.servers.gateway import REPOSITORY, Gateway, toml_for
from tests.lanes import repeat
from tests.proxy.ledger.subprocess_driver import Driver
from tests.slow.faults.environment.ledger import SqliteLedger

log = logging.getLogger(__name__)
OPEN_ROWS = repeat(fast=1_000, slow=10_000, variable="BRIDGE_TEST_OPEN_ROWS")
JOURNAL_MB = int(os.environ.get("BRIDGE_TEST_JOURNAL_MB", "0"))
READY_S, FINAL_S = 10 * 15.0, 30 * 10.0
PROGRAM = """
import asyncio, os, random, signal, sys, time
import django
django.setup()
from proxy.ledger.recorder import recorder
from tests.proxy.ledger.factories import body, opening
rows, weight = map(int, sys.argv[1:])
words = random.Random(1)

def one(number):
    text = "Hello" if not weight else words.randbytes(weight // 2).hex()
    return recorder.open(opening(number, created=time.time(), body=body(text)))

async def live():
    for first in range(0, rows, 100):
        await asyncio.gather(*(one(number) for number in range(first, first + 100)))
    os.kill(os.getpid(), signal.SIGKILL)

recorder.start()
asyncio.run(live())
"""
"""Open the given number of records, in durable batches of a hundred, then kill itself."""
ROUTE = """
[[routes]]
model = "x"
targets = [{ upstream = "chat" }]
"""


@pytest.mark.repeated
@pytest.mark.timeout(900)
def test_thousands_of_open_requests_are_closed_soon_after_a_start(tmp_path) -> None:
    folder = tmp_path / "gateway"
    folder.mkdir()
    open_and_kill(Driver(folder / "data"))
    config = toml_for({"chat": {"dialect": "chat", "base_url": "http://127.0.0.1:9/v1"}}, ROUTE)
    gateway = Gateway(folder, config=config, ready_within_s=READY_S)

    start = time.monotonic()
    with gateway:
        ready_s = time.monotonic() - start
        wait_until_drained(gateway, within_s=FINAL_S)
        final_s = time.monotonic() - start - ready_s
        reply = gateway.request("GET", "/v1/models")

    log.info("ready after %.1f s, all final after %.1f s more", ready_s, final_s)
    ledger = SqliteLedger(folder / "data" / "ledger.sqlite3")
    outcomes = ledger.select(
        "SELECT state, outcome, status, count(*) AS n FROM proxy_exchange GROUP BY 1, 2, 3"
    )
    assert [tuple(each.values()) for each in outcomes] == [("closed", "interrupted", 0, OPEN_ROWS)]
    assert reply.status == 200


def open_and_kill(driver: Driver) -> None:
    """Open the records in a separate process that then kills itself."""
    weight = JOURNAL_MB * 2**20 // OPEN_ROWS
    result = subprocess.run(  # noqa: S603 - the program above
        [sys.executable, "-c", PROGRAM, str(OPEN_ROWS), str(weight)],
        env=driver.environment, cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == -signal.SIGKILL, result.stderr
