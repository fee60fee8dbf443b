"""Faults of database and disk that no script of the catalogue can play (``storage.toml``)."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from proxy.record import spool_file
from proxy.record.errors import SpoolUnavailable
from proxy.record.landing import Landing
from proxy.record.records import Record
from proxy.record.spool import Spool
from tests.proxy.record.driver import Driver, until
from tests.proxy.record.making import closing, exchange_id, opening, rows
from tests.proxy.record.postgres import Postgres
from tests.proxy.record.writing import spool_in_a_thread


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    running = Driver(tmp_path / "data")
    yield running
    running.end()


def serve(driver: Driver, numbers: range) -> None:
    """Each accepted and ended at once: nobody waits for a database."""
    for number in numbers:
        assert driver.ask(do="open", id=number) == {"opened": number}
        assert driver.ask(do="close", id=number) == {"closed": number}


def drained(driver: Driver, rows: int, within_s: float = 60) -> None:
    until(lambda: driver.ask(do="state")["backlog"] == 0, within_s=within_s)
    told = driver.rows(
        "SELECT count(*), count(DISTINCT id) FROM proxy_exchange WHERE state = 'closed'"
    )
    assert told == [(rows, rows)]


@pytest.mark.parametrize(
    ("held_s", "free_s"), [(1.0, 0.2), (2.0, 0.01)], ids=["flaps", "slow commits"]
)
def test_a_database_that_comes_and_goes_costs_nobody_anything(driver: Driver, held_s, free_s):
    """D03, and D05: each commit of the drainer waits for another writer's."""
    driver.start()
    over = threading.Event()

    def other_writer() -> None:
        with contextlib.closing(
            sqlite3.connect(driver.database, isolation_level=None, timeout=30)
        ) as link:
            while not over.is_set():
                link.execute("BEGIN EXCLUSIVE")
                over.wait(held_s)
                link.execute("ROLLBACK")
                over.wait(free_s)

    writer = threading.Thread(target=other_writer)
    writer.start()
    for begin in range(1, 101, 20):
        serve(driver, range(begin, begin + 20))
        over.wait(0.5)
    over.set()
    writer.join(30)

    drained(driver, 100)


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    server = Postgres("max_connections=8", "superuser_reserved_connections=0")
    server.start()
    yield server
    server.stop()
    server.remove()


def one_more(numbers: Iterator[int]) -> range:
    number = next(numbers)
    return range(number, number + 1)


@contextlib.contextmanager
def read_only(server: Postgres) -> Iterator[None]:
    """As after a fail-over to a node that only replicates."""
    with psycopg.connect(server.url, autocommit=True) as link:
        for value in ("on", "off"):
            link.execute("SET default_transaction_read_only = off")
            link.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")  # type: ignore[arg-type]
            link.execute("SELECT pg_reload_conf()")
            if value == "on":
                yield


@contextlib.contextmanager
def crowded(server: Postgres) -> Iterator[None]:
    """Others hold every connection, and ours was cut."""
    with contextlib.ExitStack() as others, psycopg.connect(server.url, autocommit=True) as link:
        link.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        with contextlib.suppress(psycopg.OperationalError):
            for _ in range(20):
                others.enter_context(psycopg.connect(server.url))
        yield


@pytest.mark.timeout(240)
@pytest.mark.parametrize("away", [read_only, crowded])
def test_a_server_that_takes_nothing_costs_nobody_anything(
    postgres: Postgres,
    tmp_path: Path,
    away: Callable[[Postgres], contextlib.AbstractContextManager[None]],
):
    """D11 and D12."""
    driver = Driver(tmp_path / "data", postgres.url)
    driver.start()
    try:
        serve(driver, range(1, 11))
        until(lambda: driver.ask(do="state")["backlog"] == 0)
        numbers = count(11)
        with away(postgres):
            while driver.ask(do="state")["database"]:  # it hears of its settings soon, not at once
                serve(driver, one_more(numbers))
            for _ in range(50):
                serve(driver, one_more(numbers))
            assert driver.ask(do="state")["backlog"] >= 100
        until(lambda: driver.ask(do="state")["backlog"] == 0)
    finally:
        driver.end()

    with psycopg.connect(postgres.url) as link:
        told = link.execute(
            "SELECT count(*), count(DISTINCT id) FROM proxy_exchange WHERE state = 'closed'"
        )
        served = next(numbers) - 1
        assert told.fetchone() == (served, served)


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[None]:
    place.mkdir()
    made = subprocess.run(  # noqa: S603 - a small file system
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)],  # noqa: S607
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"NO TMPFS MAY BE MOUNTED HERE: {made.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)  # noqa: S603, S607


def test_a_full_disk_under_the_ledger_keeps_everything_in_the_spool(tmp_path: Path):
    """D06: the spool is on another disk."""
    place = tmp_path / "small"
    with small_disk(place):
        driver = Driver(tmp_path / "data", f"sqlite:///{place / 'ledger.sqlite3'}")
        driver.database = place / "ledger.sqlite3"
        driver.start()
        try:
            serve(driver, range(1, 6))
            stuffing = place / "stuffing"
            with contextlib.suppress(OSError), stuffing.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4_096)
            serve(driver, range(6, 106))
            until(lambda: not driver.ask(do="state")["database"])
            stuffing.unlink()

            drained(driver, 105)
        finally:
            driver.end()


FAULT = sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, 8, 12])
async def test_whatever_write_of_the_spool_fails_nothing_accepted_is_lost(
    tmp_path: Path, monkeypatch, nth: int, forever: bool
):
    """D16: SQLite's own way of testing, at the nth commit."""
    calls = count(1)
    real = spool_file.append

    def failing(*arguments, **named):
        n = next(calls)
        if n == nth or (forever and n > nth):
            raise FAULT
        return real(*arguments, **named)

    with spool_in_a_thread(tmp_path, monkeypatch) as running:
        accepted, closed = [], []
        with monkeypatch.context() as broken:
            broken.setattr(spool_file, "append", failing)
            for number in range(8):
                landing = entering(running, opening(number))
                try:
                    await landing.future
                except SpoolUnavailable:
                    continue
                accepted.append(number)
                closed.append(entering(running, closing(number)))
            if not forever:
                await asyncio.to_thread(until, lambda: not running.error)
        for landing in closed:
            # a close record is written as soon as that is possible again
            await asyncio.wait_for(landing.future, 60)
        path = running.slot.path

    with contextlib.closing(spool_file.connect(path)) as link:
        found = [row[0] for row in link.execute("SELECT id FROM records ORDER BY seq")]
    assert sorted(found) == sorted(exchange_id(n) for n in accepted for _ in range(2))


def entering(running: Spool, record: Record) -> Landing:
    landing = Landing(lambda: None)
    running.enter(record, landing)
    return landing


def test_what_is_acknowledged_was_synced(tmp_path: Path):
    """P14: FULL is what survives a power cut; a cheaper mark never stays on."""
    with contextlib.closing(spool_file.create(tmp_path / "spool-0.sqlite3")) as link:
        spool_file.append(link, rows(opening(1), closing(1)))
        spool_file.mark_moved(link, [1])
        settings = {
            name: link.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode")
        }

    assert settings == {"synchronous": 2, "journal_mode": "wal"}


def test_a_commit_reaches_the_disk_before_it_is_acknowledged(tmp_path: Path):
    """P14, seen from the kernel: between a write to the log and the answer stands an fsync."""
    program = (
        "import sys; from pathlib import Path; from proxy.record import spool_file;"
        "from tests.proxy.record.making import opening, rows;"
        "link = spool_file.create(Path(sys.argv[1]));"
        "[(spool_file.append(link, rows(opening(n))), print('acknowledged', n, flush=True)) for n in range(5)]"
    )
    trace = tmp_path / "trace"
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=fsync,fdatasync,write,pwrite64",  # noqa: S607
             sys.executable, "-c", program, str(tmp_path / "spool-0.sqlite3")],
            cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=60,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.proxy.record.settings"},
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("NO STRACE HERE: the order of writes cannot be watched")
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip("NOBODY MAY BE TRACED HERE")
    assert done.returncode == 0, done.stderr

    steps = []
    for line in trace.read_text(errors="replace").splitlines():
        if "sync(" in line:
            steps.append("sync")
        elif '"acknowledged' in line:
            steps.append("told")
        elif "pwrite64(" in line:
            steps.append("write")
    told = [n for n, step in enumerate(steps) if step == "told"]
    assert len(told) == 5
    for at in told:
        before = [step for step in steps[:at] if step != "told"]
        assert before[-1] == "sync", steps[max(0, at - 6) : at + 1]
