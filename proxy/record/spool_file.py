"""One spool file: an append store in SQLite that survives kill -9 and power loss.

WAL with ``synchronous=FULL``: a commit that returned is on the disk. A record is moved when the
database has it; moved records stay a day, so that a database restored from a backup can be filled
up again (promises.md D13). An exchange is *finished* when its close record was moved.
"""

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

import zstandard

logger = logging.getLogger(__name__)

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS records (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    kind INTEGER NOT NULL,          -- 0 open, 1 chunk, 2 close
    at REAL NOT NULL,               -- Unix seconds
    body BLOB NOT NULL,             -- MessagePack, see records.py; a large one in a zstd frame
    moved REAL,                     -- when the database took it; NULL: not yet
    fault TEXT                      -- why it was set aside; NULL: nothing is wrong with it
);
CREATE INDEX IF NOT EXISTS records_id ON records (id);
CREATE INDEX IF NOT EXISTS records_waiting ON records (seq)
    WHERE moved IS NULL AND fault IS NULL AND kind <> 1;
CREATE INDEX IF NOT EXISTS records_aside ON records (id) WHERE fault IS NOT NULL AND kind = 0;
CREATE INDEX IF NOT EXISTS records_ended ON records (moved, id)
    WHERE kind = 2 AND moved IS NOT NULL;
"""
APPEND: Final = "INSERT INTO records (seq, id, kind, at, body) VALUES"
APPEND_AGAIN: Final = "INSERT OR IGNORE INTO records (seq, id, kind, at, body) VALUES"
PLACES: Final = "(?,?,?,?,?)"
Row = tuple[int | None, str, int, float, bytes]
"""Number (None: the next one), exchange, kind, Unix seconds, MessagePack."""
WAITING: Final = "moved IS NULL AND fault IS NULL AND kind <> 1"
COLUMNS: Final = "id, kind, at, body, moved, fault"
LARGE_BYTES: Final = 4_096
"""From here on a body is compressed: the 60 KB that an upstream says in 200 deltas become 3 KB,
and the writer's time for them (checksums, copies, the disk) falls from 0.9 to 0.3 ms."""
KEPT_STATEMENTS: Final = 16
TOGETHER_BYTES: Final = 256 * 1024
"""Each number of records is a statement, and what the last commit of that many said stays in it:
of 128 statements, as Python keeps them, 9 MB after two minutes of 200 streams."""
LEVEL: Final = -1
"""It stays here for a day; the transcripts compress better. 60 recordings of real answers, 46 KB
each: to 2.9 KB in 26 µs, where level 1 makes 2.4 KB of them in 42."""
CACHE_KIB: Final = 512
"""Of the connection that writes: it is full after some minutes, and what it lacks the system has.
With SQLite's own 2,000 an exchange of 2 KB reads 3.4 pages instead of 3.6, in the same time."""
ROOM_BYTES: Final = 32 * 2**20  # as long as the log grows before it begins anew: see _ready
PIECE: Final = bytes(2**20)
FREE_BYTES: Final = 2**30  # with less than that on the disk nothing is taken ahead
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"  # no record begins like this: they are MessagePack maps


class Backlog(NamedTuple):
    """What waits for the database: records, and the time of the oldest (Unix seconds)."""

    records: int
    oldest: float | None
    set_aside: int


def connect(path: Path) -> sqlite3.Connection:
    """A connection for one thread. Creates nothing: the file must be there."""
    link = sqlite3.connect(f"file:{path}?mode=rw", uri=True, isolation_level=None, timeout=10)
    link.execute("PRAGMA synchronous=FULL")
    return link


def create(path: Path) -> sqlite3.Connection:
    """Open the spool for writing, made where it is missing, salvaged where it is broken."""
    try:
        return _ready(path)
    except sqlite3.DatabaseError as exc:
        if isinstance(exc, sqlite3.OperationalError):  # no space, no permission: nothing is broken
            raise
        logger.exception("spool %s is broken; keeping what can be read", path.name)
        return _salvage(path)


def _ready(path: Path) -> sqlite3.Connection:
    link = sqlite3.connect(
        path, isolation_level=None, timeout=10, cached_statements=KEPT_STATEMENTS
    )
    try:
        path.chmod(0o600)
        link.execute("PRAGMA journal_mode=WAL")
        link.execute("PRAGMA synchronous=FULL")
        link.execute("PRAGMA wal_autocheckpoint=8000")  # the drainer checkpoints long before
        link.execute("PRAGMA journal_size_limit=67108864")
        link.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        link.executescript(SCHEMA)
        _check(link)
    except BaseException:
        link.close()
        raise
    return link


def make_room(path: Path) -> None:
    """Let the write-ahead log have its full length from the start, in zeros that were written.

    A commit that only overwrites needs no change of the file's length on the disk: a quarter less
    time (0.50 and 0.38 ms, medians of 250 commits in turns). SQLite takes what follows the last
    frame for the end. Only for the thread that writes, while it does not: it looks at the length.
    """
    disk = os.statvfs(path)
    if disk.f_bavail * disk.f_frsize < FREE_BYTES:
        return
    try:
        log = os.open(f"{path}-wal", os.O_WRONLY)
    except FileNotFoundError:
        return
    try:
        for at in range(os.fstat(log).st_size, ROOM_BYTES, len(PIECE)):
            os.pwrite(log, PIECE, at)
        os.fsync(log)
    finally:
        os.close(log)


def _check(link: sqlite3.Connection) -> None:
    """Raises ``sqlite3.DatabaseError`` when pages are torn."""
    verdict = link.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)


def _salvage(path: Path) -> sqlite3.Connection:
    """Move the broken file aside and copy every record that can still be read, from both ends."""
    aside = path.with_name(f"{path.name}.broken-{time.time_ns()}")
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    Path(f"{path}-shm").unlink(missing_ok=True)
    link = _ready(path)
    kept = 0
    with contextlib.closing(sqlite3.connect(aside, isolation_level=None)) as broken:
        for row in _readable(broken):
            link.execute(
                f"INSERT OR IGNORE INTO records (seq, {COLUMNS}) VALUES (?,?,?,?,?,?,?)",  # noqa: S608 -- our own names  # nosec B608
                row,
            )
            kept += 1
    logger.warning("spool: broken file kept as %s, %d records read from it", aside.name, kept)
    return link


def _readable(broken: sqlite3.Connection) -> Iterator[tuple[object, ...]]:
    for order in ("ASC", "DESC"):
        with contextlib.suppress(sqlite3.DatabaseError):
            yield from broken.execute(
                f"SELECT seq, {COLUMNS} FROM records NOT INDEXED ORDER BY seq {order}"  # noqa: S608 -- our own names  # nosec B608
            )


def append(link: sqlite3.Connection, rows: Iterable[Row], *, again: bool = False) -> None:
    """Write the records in one durable commit, or raise ``sqlite3.Error`` and write none.

    ``again``: some may be there already, under the same number; those stay as they are.
    One statement is a transaction of its own. But a statement keeps what it was given until it is
    given something else: large bodies go one by one.
    """
    packed = [(*row[:4], _packed(row[4])) for row in rows]
    insert = APPEND_AGAIN if again else APPEND
    if sum(len(row[4]) for row in packed) > TOGETHER_BYTES:
        with transaction(link):
            link.executemany(f"{insert} {PLACES}", packed)
    elif packed:
        places = ",".join([PLACES] * len(packed))
        link.execute(f"{insert} {places}", [*chain.from_iterable(packed)])


def next_number(link: sqlite3.Connection) -> int:
    """The number that no record has had; 1 in an empty file."""
    (last,) = link.execute("SELECT max(seq) FROM records").fetchone()
    return int(last or 0) + 1


@contextlib.contextmanager
def _cheaply(link: sqlite3.Connection) -> Iterator[None]:
    """No fsync for what may be lost in a power cut: a mark that is gone only moves a record again.

    The next durable commit syncs the whole write-ahead log, so the order on the disk stays.
    """
    link.execute("PRAGMA synchronous=NORMAL")
    try:
        with transaction(link):
            yield
    finally:
        link.execute("PRAGMA synchronous=FULL")


class _Compressor(threading.local):
    """One for each thread: making it costs a fifth of what it does to a body."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=LEVEL).compress


_compressor: Final = _Compressor()


def _packed(body: bytes) -> bytes:
    return body if len(body) < LARGE_BYTES else _compressor.compress(body)


def _plain(body: bytes) -> bytes:
    """What is broken stays as it is: it cannot be decoded either, and is set aside for that."""
    if not body.startswith(ZSTD_MAGIC):
        return body
    with contextlib.suppress(zstandard.ZstdError):
        return zstandard.decompress(body)
    return body


@contextlib.contextmanager
def transaction(link: sqlite3.Connection) -> Iterator[None]:
    link.execute("BEGIN IMMEDIATE")
    try:
        yield
        link.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # a failed COMMIT may have rolled back already
            link.execute("ROLLBACK")
        raise


def backlog(link: sqlite3.Connection) -> Backlog:
    """Read off the indexes: with a day's records in the file, a look at them all takes 0.3 s."""
    (records,) = link.execute(
        f"SELECT count(*) FROM records INDEXED BY records_waiting WHERE {WAITING}"  # noqa: S608 -- our own names  # nosec B608
    ).fetchone()
    first = link.execute(
        f"SELECT at FROM records INDEXED BY records_waiting WHERE {WAITING} ORDER BY seq LIMIT 1"  # noqa: S608 -- our own names  # nosec B608
    ).fetchone()
    (set_aside,) = link.execute(
        "SELECT count(*) FROM records WHERE fault IS NOT NULL AND kind = 0"
    ).fetchone()
    return Backlog(records, first and first[0], set_aside)


def waiting_ids(link: sqlite3.Connection, limit: int, opened_before: float = inf) -> list[str]:
    """Exchanges that have something the database lacks, the longest waiting first.

    ``opened_before`` (Unix seconds): running ones younger than that are left for later.
    """
    rows = link.execute(
        f"""SELECT id FROM records INDEXED BY records_waiting
            WHERE {WAITING} AND (kind <> 0 OR at < ?) ORDER BY seq LIMIT ?""",  # noqa: S608 -- our own names  # nosec B608
        (opened_before, limit),
    )
    return list(dict.fromkeys(row[0] for row in rows))


def bodies_of(
    link: sqlite3.Connection, exchange_id: str, *, early: bool = True
) -> Iterator[tuple[int, bytes]]:
    """``(seq, MessagePack)`` of one exchange's records, oldest first.

    One at a time: there may be 32 MiB of chunks. ``early`` False leaves them out until the close
    record is there, too.
    """
    rows = link.execute(
        """SELECT seq, body FROM records WHERE id = ? AND fault IS NULL AND (kind <> 1 OR ?
           OR EXISTS (SELECT 1 FROM records WHERE id = ? AND kind = 2)) ORDER BY seq""",
        (exchange_id, early, exchange_id),
    )
    return ((seq, _plain(body)) for seq, body in rows)


def unclosed_ids(link: sqlite3.Connection) -> list[str]:
    """Exchanges without a close record: running, or orphans of a dead process."""
    rows = link.execute(
        """SELECT DISTINCT id FROM records WHERE kind = 0 AND fault IS NULL
           AND id NOT IN (SELECT id FROM records WHERE kind = 2)"""
    )
    return [row[0] for row in rows]


def mark_moved(link: sqlite3.Connection, sequences: Iterable[int]) -> None:
    now = time.time()
    with _cheaply(link):
        link.execute(
            "UPDATE records SET moved = ? WHERE seq IN (SELECT value FROM json_each(?))",
            (now, json.dumps(list(sequences))),
        )


def set_aside(link: sqlite3.Connection, exchange_id: str, fault: str) -> None:
    """Keep a record that the database refuses out of the way of the others, for a human."""
    with transaction(link):
        link.execute("UPDATE records SET fault = ? WHERE id = ?", (fault[:500], exchange_id))


def restore(link: sqlite3.Connection, since: float) -> int:
    """Let the drainer move everything again that it moved since then, and what was set aside."""
    with transaction(link):
        return link.execute(
            "UPDATE records SET moved = NULL, fault = NULL WHERE moved >= ? OR fault IS NOT NULL",
            (since,),
        ).rowcount


def forget(link: sqlite3.Connection, before: float, limit: int = 500) -> int:
    """Delete finished exchanges moved before then; the number of records that went."""
    with _cheaply(link):
        return link.execute(
            """DELETE FROM records WHERE id IN (
                 SELECT id FROM records WHERE kind = 2 AND moved < ? LIMIT ?)""",
            (before, limit),
        ).rowcount


def used_bytes(link: sqlite3.Connection) -> int:
    pages, free, size = (
        link.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)
