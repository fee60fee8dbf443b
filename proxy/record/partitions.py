"""Requests and transcripts in a table for each month on PostgreSQL: made ahead, dropped whole.

An exchange's id is a ULID, which begins with its time. So months are ranges of the primary key
itself: it stays unique over all of them, foreign keys and ``ON CONFLICT`` work as on one table,
and no model knows of it. What has no table of its own yet goes into the one for the rest. Months
of transcripts are dropped when nobody keeps them any longer; requests stay. SQLite has one table
of each, and everything here does nothing.
"""

import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import DatabaseError, connection, transaction

logger = logging.getLogger(__name__)

REQUESTS: Final = "proxy_exchange"
TRANSCRIPTS: Final = "proxy_transcript"
KEYS: Final = {REQUESTS: "id", TRANSCRIPTS: "exchange_id"}  # table -> the column of its ids
AHEAD: Final = 3  # months
ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's, as ULIDs are written
LOCK: Final = 0x6D62_7061
BOUND: Final = re.compile(r"TO \('(req_[0-9A-Z]+)'\)")
MONTHS_TRIED: Final = 24


def first_id(at: datetime) -> str:
    """Smaller than every id made then or later, larger than all before."""
    left = int(at.timestamp() * 1000)
    text = ""
    for _ in range(10):
        left, digit = divmod(left, 32)
        text = ALPHABET[digit] + text
    return f"req_{text}"


def rest_of(table: str) -> str:
    """Where goes what no month has a table for."""
    return f"{table}_rest"


def before_of(table: str) -> str:
    """The table that there was: of months that are over, and of the one that it was parted in."""
    return f"{table}_before"


def month_of(at: datetime) -> datetime:
    return datetime(at.year, at.month, 1, tzinfo=UTC)


def next_month(month: datetime) -> datetime:
    return month_of(month + timedelta(days=32))


def convert(cursor: Any, now: datetime) -> bool:
    """Once, in a migration: today's transcripts become the first partition, without being copied.

    False: they hold ids of the far future, and stay as they are.
    """
    end = _first_end(cursor, TRANSCRIPTS, now)
    if end is None:
        return False
    before = before_of(TRANSCRIPTS)
    for statement in (
        f"ALTER TABLE {TRANSCRIPTS} RENAME TO {before}",
        f"""CREATE TABLE {TRANSCRIPTS} (LIKE {before} INCLUDING DEFAULTS INCLUDING STORAGE)
            PARTITION BY RANGE (exchange_id)""",
        f"ALTER TABLE {TRANSCRIPTS} ADD CONSTRAINT {TRANSCRIPTS}_key PRIMARY KEY (exchange_id)",
        f"""ALTER TABLE {TRANSCRIPTS} ADD CONSTRAINT {TRANSCRIPTS}_of FOREIGN KEY (exchange_id)
            REFERENCES {REQUESTS} (id) DEFERRABLE INITIALLY DEFERRED""",
        f"CREATE INDEX {TRANSCRIPTS}_by_time ON {TRANSCRIPTS} (created)",
        f"CREATE INDEX {TRANSCRIPTS}_by_prefix ON {TRANSCRIPTS} (prefix)",
    ):
        cursor.execute(statement)
    _attach(cursor, TRANSCRIPTS, end)
    return True


def convert_requests(cursor: Any, now: datetime) -> bool:
    """The same for the requests. Their indexes keep their names: migrations to come know them."""
    end = _first_end(cursor, REQUESTS, now)
    if end is None:
        return False
    before = before_of(REQUESTS)
    cursor.execute(FOREIGN_KEYS, [REQUESTS])
    foreign = cursor.fetchall()
    for table, name, _ in foreign:
        cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    cursor.execute(INDEXES, [REQUESTS])
    indexes = cursor.fetchall()
    cursor.execute(f"ALTER TABLE {REQUESTS} RENAME TO {before}")
    cursor.execute(
        f"""CREATE TABLE {REQUESTS} (LIKE {before} INCLUDING DEFAULTS INCLUDING CONSTRAINTS
            INCLUDING STORAGE) PARTITION BY RANGE (id)"""
    )
    for name, definition, is_key in indexes:
        cursor.execute(f"ALTER INDEX {name} RENAME TO {name}_before")
        key = f"ALTER TABLE {REQUESTS} ADD CONSTRAINT {name} PRIMARY KEY (id)"
        cursor.execute(key if is_key else definition)
    _attach(cursor, REQUESTS, end)
    for table, name, definition in foreign:
        cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
    return True


FOREIGN_KEYS: Final = """SELECT conrelid::regclass::text, quote_ident(conname),
                                pg_get_constraintdef(oid)
    FROM pg_constraint WHERE contype = 'f' AND confrelid = to_regclass(%s) AND conparentid = 0"""
INDEXES: Final = """SELECT quote_ident(c.relname), pg_get_indexdef(i.indexrelid), i.indisprimary
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = to_regclass(%s)"""


def _first_end(cursor: Any, table: str, now: datetime) -> str | None:
    """The first bound that is larger than all ids; None: there is none within two years."""
    cursor.execute(f"SELECT max({KEYS[table]}) FROM {table}")  # noqa: S608 - our own names  # nosec B608
    newest = cursor.fetchone()[0] or ""
    end = next_month(month_of(now))
    for _ in range(MONTHS_TRIED):
        if newest < first_id(end):
            return first_id(end)
        end = next_month(end)
    return None


def _attach(cursor: Any, table: str, end: str) -> None:
    cursor.execute(
        f"ALTER TABLE {table} ATTACH PARTITION {before_of(table)} "
        f"FOR VALUES FROM (MINVALUE) TO ('{end}')"
    )
    cursor.execute(f"CREATE TABLE {rest_of(table)} PARTITION OF {table} DEFAULT")


def partitions(table: str) -> dict[str, str]:
    """Each partition's bounds, as PostgreSQL writes them; none where the table is one."""
    if connection.vendor != "postgresql":
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i "
            "JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass(%s)",
            [table],
        )
        return dict(cursor.fetchall())


def make_ahead(now: datetime) -> list[str]:
    """The tables of the coming months, where they are missing; their names.

    Gives up after two seconds when somebody reads for long, or when the table for the rest holds
    some of that month already: nothing is lost, and there is time until next month.
    """
    return [name for table in KEYS for name in _make_ahead(table, now)]


def _make_ahead(table: str, now: datetime) -> list[str]:
    made: list[str] = []
    there = partitions(table)
    if not there:
        return made
    before = before_of(table)
    start = _end_of(there[before]) if before in there else first_id(month_of(now))
    month = month_of(now)
    for _ in range(AHEAD + 1):
        name = f"{table}_{month:%Y_%m}"
        if name not in there and first_id(month) >= (start or ""):
            try:
                _make(table, name, first_id(month), first_id(next_month(month)))
            except DatabaseError as exc:
                logger.warning("%s is not made now: %s", name, exc)
                break
            made.append(name)
        month = next_month(month)
    return made


def _make(table: str, name: str, start: str, end: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '2s'")
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {table} "
            f"FOR VALUES FROM ('{start}') TO ('{end}')"
        )


def drop_past(before: datetime) -> Iterator[int]:
    """Drop the transcripts of each month that ended before then; yields how many there were."""
    last = first_id(before)
    for name, bounds in sorted(partitions(TRANSCRIPTS).items()):
        end = _end_of(bounds)
        if end is None or end > last:
            continue
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '10s'")
            cursor.execute(f"SELECT count(*) FROM {name}")  # noqa: S608 - a name from the catalogue  # nosec B608
            (held,) = cursor.fetchone()
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # a check that waits forbids dropping
            cursor.execute(f"DROP TABLE {name}")
        yield held


def _end_of(bounds: str) -> str | None:
    found = BOUND.search(bounds)
    return found[1] if found else None
