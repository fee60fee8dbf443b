"""Partition the tables of requests and transcripts by month on PostgreSQL.

A request's id is a ULID, which begins with the time of the request, so a month is a range of
primary keys. Primary keys stay unique over all partitions, foreign keys and ``ON CONFLICT`` work as
with one table, and the models do not change. Partitions are created some months ahead; a row
without a partition for its month goes to the default partition. A partition of transcripts is
dropped when all its rows are past retention; partitions of requests are never dropped. On SQLite
these functions do nothing.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import DatabaseError, connection, transaction

logger = logging.getLogger(__name__)

REQUESTS: Final = "proxy_exchange"
TRANSCRIPTS: Final = "proxy_transcript"
KEYS: Final = {REQUESTS: "id", TRANSCRIPTS: "exchange_id"}  # table -> its primary key's column
MONTHS_AHEAD: Final = 3
ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, the encoding of ULIDs
LOCK: Final = 0x6D62_7061
BOUND: Final = re.compile(r"TO \('(req_[0-9A-Z]+)'\)")


def first_id(at: datetime) -> str:
    """Return the lower bound of the ids of requests at this time or later."""
    remaining = int(at.timestamp() * 1000)
    text = ""
    for _ in range(10):
        remaining, digit = divmod(remaining, 32)
        text = ALPHABET[digit] + text
    return f"req_{text}"


def default_partition(table: str) -> str:
    """Return the name of the default partition, for ids that no other partition contains."""
    return f"{table}_rest"


def first_partition(table: str) -> str:
    """Return the name of the first partition, which ends with the month of the migration."""
    return f"{table}_before"


def month_of(at: datetime) -> datetime:
    return datetime(at.year, at.month, 1, tzinfo=UTC)


def next_month(month: datetime) -> datetime:
    return month_of(month + timedelta(days=32))


@contextlib.contextmanager
def partitioned_by_month(schema_editor: Any, table: str) -> Iterator[None]:
    """Partition a table that a migration creates inside this ``with`` block, on PostgreSQL only.

    The first partition contains the current month and all earlier months.
    """
    if schema_editor.connection.vendor != "postgresql":
        yield
        return
    schema_editor.sql_create_table += f" PARTITION BY RANGE ({KEYS[table]})"
    try:
        yield
    finally:
        # This deletes the override, so that Django's class attribute applies again.
        del schema_editor.sql_create_table
    end = first_id(next_month(month_of(datetime.now(UTC))))
    schema_editor.execute(
        f"CREATE TABLE {first_partition(table)} PARTITION OF {table} "
        f"FOR VALUES FROM (MINVALUE) TO ('{end}')"
    )
    schema_editor.execute(f"CREATE TABLE {default_partition(table)} PARTITION OF {table} DEFAULT")


def partitions(table: str) -> dict[str, str]:
    """Return the bounds of each partition as SQL, by name; empty if the table has no partitions."""
    if connection.vendor != "postgresql":
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i "
            "JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass(%s)",
            [table],
        )
        return dict(cursor.fetchall())


def create_ahead(now: datetime) -> list[str]:
    """Create the missing partitions of the next months and return their names.

    The function stops at the first database error: a long query locks the table for more than two
    seconds, or the default partition has rows of that month. No row is lost, and a later call tries
    again.
    """
    return [name for table in KEYS for name in _create_ahead(table, now)]


def _create_ahead(table: str, now: datetime) -> list[str]:
    created: list[str] = []
    existing = partitions(table)
    if not existing:
        return created
    before = first_partition(table)
    start = _end_of(existing[before]) if before in existing else first_id(month_of(now))
    month = month_of(now)
    for _ in range(MONTHS_AHEAD + 1):
        name = f"{table}_{month:%Y_%m}"
        if name not in existing and first_id(month) >= (start or ""):
            try:
                _create(table, name, first_id(month), first_id(next_month(month)))
            except DatabaseError as exc:
                logger.warning("partition %s is not created now: %s", name, exc)
                break
            created.append(name)
        month = next_month(month)
    return created


def _create(table: str, name: str, start: str, end: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '2s'")
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {table} "
            f"FOR VALUES FROM ('{start}') TO ('{end}')"
        )


def drop_months_before(before: datetime) -> Iterator[int]:
    """Drop each monthly partition of transcripts that ended before ``before``.

    The function yields the number of transcripts in each dropped partition.
    """
    last = first_id(before)
    for name, bounds in sorted(partitions(TRANSCRIPTS).items()):
        end = _end_of(bounds)
        if end is None or end > last:
            continue
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '10s'")
            cursor.execute(f"SELECT count(*) FROM {name}")  # noqa: S608 - a name from the catalogue  # nosec B608
            (count,) = cursor.fetchone()
            # Pending deferred constraint checks would prevent DROP TABLE.
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute(f"DROP TABLE {name}")
        yield count


def _end_of(bounds: str) -> str | None:
    match = BOUND.search(bounds)
    return match[1] if match else None
