"""The database may be away, locked or read-only: clients notice nothing, every row comes once."""

import sqlite3

from .driver import Driver, until


def closed_rows(driver: Driver) -> int:
    return driver.rows("SELECT count(*) FROM proxy_exchange WHERE state = 'closed'")[0][0]


def serve(driver: Driver, numbers: range) -> None:
    for number in numbers:
        assert driver.ask(do="open", id=number) == {"opened": number}
        assert driver.ask(do="close", id=number) == {"closed": number}


def test_requests_go_on_while_the_database_file_is_gone(driver: Driver) -> None:
    driver.start()
    serve(driver, range(1, 11))
    until(lambda: closed_rows(driver) == 10)
    away = driver.directory / "away"
    away.mkdir()
    # The database itself last, and first when it is needed no more: what finds it finds its log.
    for name in ("ledger.sqlite3-wal", "ledger.sqlite3-shm", "ledger.sqlite3"):
        if (driver.directory / name).exists():
            (driver.directory / name).rename(away / name)
    # What was to be posted before it is noticed may still reach the file, wherever that is now.
    until(lambda: not driver.ask(do="state")["database"])

    serve(driver, range(11, 61))
    until(lambda: driver.ask(do="state")["backlog"] == 100)  # it is counted a moment before
    state = driver.ask(do="state")

    assert state["spool"]
    assert not state["database"]
    assert "cannot be reached" in state["database_error"]
    assert not driver.database.exists(), "an empty ledger took the place of the real one"
    for path in sorted(away.iterdir(), reverse=True):
        path.rename(driver.directory / path.name)
    until(lambda: driver.ask(do="state")["backlog"] == 0)
    assert closed_rows(driver) == 60
    assert driver.rows("SELECT sum(requests) FROM proxy_daysummary") == [(60,)]


def test_requests_go_on_while_another_writer_holds_the_database(driver: Driver) -> None:
    driver.start()
    with sqlite3.connect(driver.database, isolation_level=None, timeout=60) as other:
        other.execute("BEGIN EXCLUSIVE")
        serve(driver, range(1, 51))
        assert driver.ask(do="state")["backlog"] > 0
        other.execute("ROLLBACK")
    other.close()

    until(lambda: closed_rows(driver) == 50)

    assert driver.rows("SELECT count(*) FROM proxy_seal") == [(50,)]


def test_a_database_that_was_emptied_is_filled_again_from_the_spool(driver: Driver) -> None:
    driver.start()
    serve(driver, range(1, 21))
    until(lambda: closed_rows(driver) == 20)
    driver.ask(do="stop")
    driver.end()
    for path in driver.directory.glob("ledger.sqlite3*"):
        path.unlink()
    driver.manage("migrate", "--verbosity", "0")

    driver.manage("settleorphans", "--restore", "1h")
    driver.start()

    until(lambda: closed_rows(driver) == 20)
    assert driver.rows("SELECT count(*) FROM proxy_transcript") == [(20,)]
