"""kill -9 at any moment loses nothing that was acknowledged and doubles nothing (D7, G09)."""

import contextlib
import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.lanes import repeat
from tests.proxy.ledger.factories import exchange_id
from tests.proxy.ledger.subprocess_driver import ROOT, Driver
from tests.waiting import until

KILLS = repeat(fast=2, slow=30, variable="BRIDGE_KILLS")
KILLS_OF_A_COMMAND = repeat(fast=1, slow=3)


@pytest.mark.repeated
@pytest.mark.timeout(600)
def test_no_acknowledged_request_is_lost_or_doubled_by_kill_9(driver: Driver) -> None:
    chance = random.Random(9)  # noqa: S311 -- chance, not secrecy
    opened: set[int] = set()
    closed: set[int] = set()
    for life in range(KILLS):
        driver.start()
        for number in range(life * 60, life * 60 + 60):
            driver.send(do="open", id=number)
            driver.send(do="chunk", id=number, reads=[[1.0, "data: {}\n\n"]])
            if chance.random() < 0.7:
                driver.send(do="close", id=number)
        first = [driver.read()] if life % 2 else []  # and one that ends before it
        time.sleep(chance.random() * 0.15)
        results = [*first, *driver.kill()]
        opened |= {one["opened"] for one in results if "opened" in one}
        closed |= {one["closed"] for one in results if "closed" in one}
    driver.start()
    until(lambda: driver.request(do="state")["backlog"] == 0)
    until(lambda: not driver.rows("SELECT 1 FROM proxy_exchange WHERE state = 'open'"))
    until(lambda: driver.request(do="state")["backlog"] == 0)  # the orphans' close records as well

    outcomes = dict(driver.rows("SELECT id, outcome FROM proxy_exchange"))
    assert opened, "nothing was acknowledged before the kills: the test proves nothing"
    assert {exchange_id(n) for n in opened} <= set(outcomes)
    assert {exchange_id(n) for n in closed} <= {k for k, o in outcomes.items() if o == "completed"}
    assert set(outcomes.values()) <= {"completed", "interrupted"}
    (seals,) = driver.rows("SELECT count(*) FROM proxy_hashchainlink")
    (requests,) = driver.rows("SELECT sum(requests) FROM proxy_usageday")
    assert seals == requests == (len(outcomes),)
    assert "everything is as it was written" in driver.manage("verifyledger").stdout


def test_what_a_killed_process_left_open_is_interrupted_with_its_checkpoint(driver: Driver) -> None:
    driver.start()
    driver.request(do="open", id=1)
    driver.send(do="chunk", id=1, reads=[[12.0, "data: half an ans"]])
    driver.request(do="open", id=2)  # in the same order: the chunk is on the disk as well
    driver.kill()

    driver.start()
    until(lambda: len(driver.rows("SELECT 1 FROM proxy_exchange WHERE state = 'closed'")) == 2)

    rows = driver.rows("SELECT id, outcome, status FROM proxy_exchange ORDER BY id")
    assert rows == [(exchange_id(1), "interrupted", 200), (exchange_id(2), "interrupted", 0)]
    stored = driver.rows("SELECT stream IS NOT NULL FROM proxy_transcript ORDER BY exchange_id")
    assert stored == [(1,), (0,)]


@pytest.mark.repeated
def test_the_journal_of_a_lost_host_is_adopted_once_also_if_the_command_is_killed(
    driver: Driver, tmp_path
) -> None:
    """The disk of the host is mounted on another host, which uses a journal of the same name."""
    requests, running = 500, 20
    driver.start()
    with locked(driver):
        for number in range(requests):
            driver.send(do="open", id=number)
            driver.send(do="chunk", id=number, reads=[[1.0, "data: {}\n\n"]])
            if number >= running:
                driver.send(do="close", id=number)
        for _ in range(2 * requests - running):
            driver.read()
        driver.kill()
    lost = tmp_path / "mounted" / "data"
    lost.mkdir(parents=True)
    for path in driver.directory.glob("journal-*"):
        path.rename(lost / path.name)
    driver.start()
    assert driver.request(do="open", id=requests) == {"opened": requests}

    command = [sys.executable, str(ROOT / "manage.py"), "adoptjournal", str(lost)]
    for _ in range(KILLS_OF_A_COMMAND):
        before = closed_rows(driver)
        adoption = subprocess.Popen(command, env=driver.environment, cwd=ROOT)  # noqa: S603 -- our own program
        until(lambda: closed_rows(driver) > before or adoption.poll() is not None)  # noqa: B023 -- called at once
        adoption.kill()
        adoption.wait()
    result = json.loads(driver.manage("adoptjournal", str(lost), "--json").stdout)
    again = json.loads(driver.manage("adoptjournal", str(lost / "journal-0"), "--json").stdout)

    assert result == again == {"adopted": ["journal-0"], "in_use": [], "incomplete": []}
    assert driver.request(do="close", id=requests) == {"closed": requests}
    until(lambda: closed_rows(driver) == requests + 1)
    outcomes = driver.rows("SELECT outcome, count(*) FROM proxy_exchange GROUP BY 1 ORDER BY 1")
    assert outcomes == [("completed", requests - running + 1), ("interrupted", running)]
    assert driver.rows("SELECT sum(requests) FROM proxy_usageday") == [(requests + 1,)]
    assert "everything is as it was written" in driver.manage("verifyledger").stdout


def closed_rows(driver: Driver) -> int:
    return int(driver.rows("SELECT count(*) FROM proxy_exchange WHERE state = 'closed'")[0][0])


@contextlib.contextmanager
def locked(driver: Driver) -> Iterator[None]:
    """Lock the database, so that all records stay in the journal."""
    with contextlib.closing(
        sqlite3.connect(driver.database, isolation_level=None, timeout=60)
    ) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


def test_a_journal_in_use_is_not_adopted(driver: Driver) -> None:
    driver.start()
    driver.request(do="open", id=1)

    used = driver.manage("adoptjournal", str(driver.directory), exit_code=1)
    missing = driver.manage("adoptjournal", str(driver.directory / "nothing"), exit_code=2)

    assert "journal-0: a running process uses it" in used.stdout
    assert "contains no journal" in missing.stderr
    assert driver.request(do="close", id=1) == {"closed": 1}


def test_a_second_worker_adopts_the_journal_of_a_killed_one(driver: Driver, tmp_path) -> None:
    driver.start()
    driver.request(do="open", id=1)
    other = Driver(driver.directory)
    other.start()
    driver.kill()

    until(lambda: bool(other.rows("SELECT 1 FROM proxy_exchange WHERE outcome = 'interrupted'")))

    assert other.request(do="open", id=2) == {"opened": 2}
    other.end()
