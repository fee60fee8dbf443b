"""Faults of database and disk that a catalogue script cannot express (``tables/storage.toml``)."""

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from proxy.ledger.errors import JournalUnavailable
from proxy.ledger.journal import locks, segments
from proxy.ledger.journal.journal import DurabilityFuture, Journal
from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.journal.records import Record
from tests.fakes.servers.postgresql import Postgres
from tests.proxy.ledger.conftest import ids_in
from tests.proxy.ledger.factories import closing, exchange_id, opening
from tests.proxy.ledger.subprocess_driver import Driver
from tests.waiting import until


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    running = Driver(tmp_path / "data")
    yield running
    running.end()


def serve(driver: Driver, numbers: range) -> None:
    """Open and close records; neither waits for the database."""
    for number in numbers:
        assert driver.request(do="open", id=number) == {"opened": number}
        assert driver.request(do="close", id=number) == {"closed": number}


def wait_until_drained(driver: Driver, rows: int, within_s: float = 60) -> None:
    until(lambda: driver.request(do="state")["backlog"] == 0, within_s=within_s)
    counts = driver.rows(
        "SELECT count(*), count(DISTINCT id) FROM proxy_exchange WHERE state = 'closed'"
    )
    assert counts == [(rows, rows)]


@pytest.mark.parametrize(
    ("lock_s", "free_s"), [(1.0, 0.2), (2.0, 0.01)], ids=["flaps", "slow commits"]
)
def test_intermittently_locked_database_loses_no_row(driver: Driver, lock_s, free_s):
    """D03 and D05: each commit of the drainer waits for another writer."""
    driver.start()
    finished = threading.Event()

    def other_writer() -> None:
        with contextlib.closing(
            sqlite3.connect(driver.database, isolation_level=None, timeout=30)
        ) as connection:
            while not finished.is_set():
                connection.execute("BEGIN EXCLUSIVE")
                finished.wait(lock_s)
                connection.execute("ROLLBACK")
                finished.wait(free_s)

    writer = threading.Thread(target=other_writer)
    writer.start()
    for start in range(1, 61, 20):
        serve(driver, range(start, start + 20))
        finished.wait(0.5)
    finished.set()
    writer.join(30)

    wait_until_drained(driver, 60)


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with Postgres("max_connections=8", "superuser_reserved_connections=0") as server:
        yield server


def next_range(numbers: Iterator[int]) -> range:
    number = next(numbers)
    return range(number, number + 1)


@contextlib.contextmanager
def read_only(server: Postgres) -> Iterator[None]:
    """Make the server read-only, as after a fail-over to a replica."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        for value in ("on", "off"):
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")  # type: ignore[arg-type]
            connection.execute("SELECT pg_reload_conf()")
            if value == "on":
                yield


@contextlib.contextmanager
def exhausted_connections(server: Postgres) -> Iterator[None]:
    """Close the gateway's connection and use all others."""
    with (
        contextlib.ExitStack() as others,
        psycopg.connect(server.url, autocommit=True) as connection,
    ):
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        with contextlib.suppress(psycopg.OperationalError):
            for _ in range(20):
                others.enter_context(psycopg.connect(server.url))
        yield


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", [read_only, exhausted_connections])
def test_server_that_rejects_writes_loses_no_row(
    postgres: Postgres,
    tmp_path: Path,
    fault: Callable[[Postgres], contextlib.AbstractContextManager[None]],
):
    """D11 and D12."""
    driver = Driver(tmp_path / "data", postgres.url)
    driver.start()
    try:
        serve(driver, range(1, 11))
        until(lambda: driver.request(do="state")["backlog"] == 0)
        numbers = count(11)
        with fault(postgres):
            while driver.request(do="state")["database"]:  # the setting takes effect after a delay
                serve(driver, next_range(numbers))
            for _ in range(50):
                serve(driver, next_range(numbers))
            assert driver.request(do="state")["backlog"] >= 100
        until(lambda: driver.request(do="state")["backlog"] == 0)
    finally:
        driver.end()

    with psycopg.connect(postgres.url) as connection:
        counts = connection.execute(
            "SELECT count(*), count(DISTINCT id) FROM proxy_exchange WHERE state = 'closed'"
        )
        served = next(numbers) - 1
        assert counts.fetchone() == (served, served)


@contextlib.contextmanager
def small_disk(disk_folder: Path) -> Iterator[None]:
    disk_folder.mkdir()
    result = subprocess.run(  # noqa: S603 - mounts a small file system
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk_folder)],  # noqa: S607
        capture_output=True, check=False,
    )  # fmt: skip
    if result.returncode:
        pytest.skip(f"mounting tmpfs is not permitted: {result.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(disk_folder)], check=True)  # noqa: S603, S607


def test_a_full_disk_under_the_ledger_keeps_everything_in_the_journal(tmp_path: Path):
    """D06: the journal is on another disk."""
    disk_folder = tmp_path / "small"
    with small_disk(disk_folder):
        driver = Driver(tmp_path / "data", f"sqlite:///{disk_folder / 'ledger.sqlite3'}")
        driver.database = Path(shutil.move(driver.database, disk_folder))
        driver.start()
        try:
            serve(driver, range(1, 6))
            filler = disk_folder / "stuffing"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4_096)
            serve(driver, range(6, 106))
            until(lambda: not driver.request(do="state")["database"])
            filler.unlink()

            wait_until_drained(driver, 105)
        finally:
            driver.end()


def append_continuously(journal: Journal) -> None:
    while True:
        journal.append_and_wait(opening(1_000, body=os.urandom(2**16)))


def test_a_full_disk_takes_the_close_records_of_accepted_requests(tmp_path: Path):
    """D07, on a real file system: they are written into the space of the reserve."""
    place = tmp_path / "small"
    with small_disk(place), locks.take(place) as lock:
        journal = Journal(lock, reserve_bytes=2**20)
        journal.start()
        for number in range(50):
            journal.append_and_wait(opening(number))
        stuffing = place / "stuffing"
        with contextlib.suppress(OSError), stuffing.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4_096)
        with pytest.raises(JournalUnavailable, match="No space left"):
            append_continuously(journal)

        for number in range(50):
            journal.append_and_wait(closing(number))

        assert "No space left" in journal.error
        stuffing.unlink()
        until(lambda: not journal.error)
        journal.append_and_wait(opening(2_000))
        journal.stop()
        with contextlib.closing(JournalReader(lock.path)) as reader:
            reader.read(10**9)
            assert len(reader.ready_ids(10**9)) == 50


@pytest.mark.parametrize("forever", [False, True], ids=["once", "permanently"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, 8, 12])
async def test_whatever_write_of_the_journal_fails_nothing_accepted_is_lost(
    tmp_path: Path, monkeypatch, nth: int, forever: bool
):
    """D16: fail at the nth synchronous write, as SQLite's own tests do."""
    calls = count(1)
    real = segments.Segment.append

    def failing(*arguments):
        n = next(calls)
        if n == nth or (forever and n > nth):
            raise OSError(errno.EIO, "Input/output error")
        return real(*arguments)

    with locks.take(tmp_path) as lock:
        journal = Journal(lock, reserve_bytes=65_536, segment_bytes=2_000)
        journal.start()
        accepted_ids, closed = [], []
        with monkeypatch.context() as broken:
            broken.setattr(segments.Segment, "append", failing)
            for number in range(8):
                future = appended(journal, opening(number))
                try:
                    await future.wait()
                except JournalUnavailable:
                    continue
                accepted_ids.append(number)
                closed.append(appended(journal, closing(number)))
            if not forever:
                await asyncio.to_thread(until, lambda: not journal.error)
        for future in closed:
            # the close record is written when the journal works again
            await asyncio.wait_for(future.wait(), 60)
        await asyncio.to_thread(journal.stop)

    assert accepted_ids or forever
    assert sorted(ids_in(lock.path)) == sorted(
        exchange_id(n) for n in accepted_ids for _ in range(2)
    )


def appended(journal: Journal, record: Record) -> DurabilityFuture:
    future = DurabilityFuture(lambda: None)
    journal.append(record, future)
    return future


def test_commit_is_synced_before_it_is_acknowledged(tmp_path: Path):
    """P14, by system calls: a synchronous write to the segment precedes each acknowledgment."""
    program = (
        "import sys; from pathlib import Path;"
        "from proxy.ledger.journal import locks; from proxy.ledger.journal.journal import Journal;"
        "from tests.proxy.ledger.factories import opening;"
        "journal = Journal(locks.take(Path(sys.argv[1])), reserve_bytes=4096); journal.start();"
        "[(journal.append_and_wait(opening(n)), print('acknowledged', n, flush=True)) for n in range(5)]"
    )
    trace = tmp_path / "trace"
    try:
        done = subprocess.run(  # noqa: S603 - the program above
            ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=openat,write",  # noqa: S607
             sys.executable, "-c", program, str(tmp_path / "data")],
            cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False, timeout=60,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.proxy.ledger.settings"},
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("strace is not installed: the order of writes cannot be observed")
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip("tracing is not permitted")
    assert done.returncode == 0, done.stderr

    lines = trace.read_text(errors="replace").splitlines()
    opened = [line for line in lines if ".segment" in line and "O_CREAT" in line]
    assert opened
    assert all("O_DSYNC" in line for line in opened)
    steps = []
    for line in lines:
        if '"acknowledged' in line:
            steps.append("acknowledged")
        elif r"\367REC" in line and "unfinished" not in line:
            steps.append("written")
        elif r"\367REC" in line:
            writer = line.split()[0]
        elif "write resumed" in line and line.split()[0] == writer:
            steps.append("written")
    assert steps == ["written", "acknowledged"] * 5


async def test_a_slow_disk_delays_requests_and_nothing_else(tmp_path: Path, monkeypatch):
    """D17: the event loop goes on, and records that wait together share a write."""
    real, continues, writes = segments.Segment.append, threading.Event(), []

    def append_slowly(segment: segments.Segment, frames: list[bytes]) -> object:
        writes.append(len(frames))
        assert continues.wait(60)
        return real(segment, frames)

    with locks.take(tmp_path) as lock:
        journal = Journal(lock, reserve_bytes=65_536)
        journal.start()
        # A test cannot slow the disk down.
        monkeypatch.setattr(segments.Segment, "append", append_slowly)
        futures = [appended(journal, opening(n)) for n in range(200)]
        waiting = asyncio.gather(*(each.wait() for each in futures))
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert not waiting.done()

        continues.set()
        await waiting
        assert sum(writes) == 200
        assert len(writes) <= 2
        monkeypatch.undo()
        await asyncio.to_thread(journal.stop)
