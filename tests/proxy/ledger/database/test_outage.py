"""Requests continue without the database, and each row is written once afterwards."""

import shutil
import sqlite3
from pathlib import Path

from tests.proxy.ledger.subprocess_driver import Driver
from tests.waiting import until


def closed_rows(driver: Driver) -> int:
    return driver.rows("SELECT count(*) FROM proxy_exchange WHERE state = 'closed'")[0][0]


def serve(driver: Driver, numbers: range) -> None:
    for number in numbers:
        assert driver.request(do="open", id=number) == {"opened": number}
        assert driver.request(do="close", id=number) == {"closed": number}


def test_requests_continue_without_the_database_file(driver: Driver) -> None:
    driver.start()
    serve(driver, range(1, 11))
    until(lambda: closed_rows(driver) == 10)
    away = driver.directory / "away"
    away.mkdir()
    # The database is moved last and restored first: SQLite needs its write-ahead log.
    for name in ("ledger.sqlite3-wal", "ledger.sqlite3-shm", "ledger.sqlite3"):
        if (driver.directory / name).exists():
            (driver.directory / name).rename(away / name)
    # Until the drainer detects the missing file, it still writes to the moved one.
    until(lambda: not driver.request(do="state")["database"])

    serve(driver, range(11, 61))
    until(
        lambda: driver.request(do="state")["backlog"] == 100
    )  # the count may be older than the state
    state = driver.request(do="state")

    assert state["journal"]
    assert not state["database"]
    assert "cannot be reached" in state["database_error"]
    assert not driver.database.exists(), "an empty ledger replaced the real one"
    for path in sorted(away.iterdir(), reverse=True):
        path.rename(driver.directory / path.name)
    until(lambda: driver.request(do="state")["backlog"] == 0)
    assert closed_rows(driver) == 60
    assert driver.rows("SELECT sum(requests) FROM proxy_usagesummaryday") == [(60,)]


def test_requests_continue_while_another_writer_locks_the_database(driver: Driver) -> None:
    driver.start()
    with sqlite3.connect(driver.database, isolation_level=None, timeout=60) as other:
        other.execute("BEGIN EXCLUSIVE")
        serve(driver, range(1, 51))
        assert driver.request(do="state")["backlog"] > 0
        other.execute("ROLLBACK")
    other.close()

    until(lambda: closed_rows(driver) == 50)

    assert driver.rows("SELECT count(*) FROM proxy_hashchainlink") == [(50,)]


def test_a_database_that_was_emptied_is_filled_again_from_the_journal(
    driver: Driver, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.sqlite3"
    shutil.copyfile(driver.database, empty)
    driver.start()
    serve(driver, range(1, 21))
    until(lambda: closed_rows(driver) == 20)
    driver.request(do="stop")
    driver.end()
    for path in driver.directory.glob("ledger.sqlite3*"):
        path.unlink()
    empty.rename(driver.database)

    driver.manage("settleorphans", "--restore", "1h")
    driver.start()

    until(lambda: closed_rows(driver) == 20)
    assert driver.rows("SELECT count(*) FROM proxy_transcript") == [(20,)]
