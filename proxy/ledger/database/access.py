"""Reach the ledger's database: whether it is there, its credentials, a time limit for queries."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import dj_database_url
from django.db import (
    DEFAULT_DB_ALIAS,
    DatabaseError,
    DataError,
    IntegrityError,
    OperationalError,
    connection,
    connections,
    transaction,
)

from proxy.ledger.errors import LedgerUnavailable
from proxy.secrets import SECRET_FILES, ConfigError

# Errors caused by the record itself: writing the record again would fail again. After an error of
# the database connection, a retry may succeed.
POISON: Final = (
    DataError, IntegrityError, ValueError, TypeError, LookupError, AttributeError, OverflowError,
)  # fmt: skip

SMALL_CACHE: Final = "PRAGMA cache_size=-2048"  # KiB
"""SQLite's page cache for the thread that writes ledger rows. Measured against 4,096 KiB: an
exchange of 2 KB reads 5.6 pages from the file instead of 4.2, and a session turn of at least 46 KB
reads 42 instead of 7 (databases of 65 and 95 MB); the time is the same."""

_inodes: dict[str, int] = {}  # path of the SQLite file -> its inode when the connection was opened


def database_file() -> tuple[str, int] | None:
    """Return the path and inode of the SQLite file; None for PostgreSQL or an in-memory database.

    Raises LedgerUnavailable if the file is missing: SQLite would create an empty file.
    """
    name = str(connection.settings_dict["NAME"])
    if connection.vendor != "sqlite" or "memory" in name:
        return None
    try:
        return name, Path(name).stat().st_ino
    except OSError as exc:
        connection.close()
        raise LedgerUnavailable(f"the database file cannot be reached: {exc.strerror}") from exc


def check_present() -> None:
    """Raise LedgerUnavailable if the SQLite file is missing.

    Reconnect if the file was replaced, for example by a restored backup.
    """
    file = database_file()
    if file is None:
        return
    name, inode = file
    if _inodes.setdefault(name, inode) != inode:
        connection.close()
        _inodes[name] = inode


def shrink_sqlite_cache() -> None:
    """Limit the page cache of a connection that only inserts rows and reads the newest ones.

    Otherwise the cache grows within minutes to the 16 MB that settings.py allows for reports.
    """
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(SMALL_CACHE)


@contextmanager
def advisory_lock(number: int, *, wait: bool) -> Iterator[None]:
    """Exclude other processes that share a PostgreSQL, of other hosts too; on SQLite, do nothing.

    PostgreSQL releases the lock of a killed process when its connection ends. Raises
    BlockingIOError without ``wait`` if another process has the lock.
    """
    if connection.vendor != "postgresql":
        yield
        return
    with connection.cursor() as cursor:
        take = "SELECT pg_advisory_lock(%s)" if wait else "SELECT pg_try_advisory_lock(%s)"
        cursor.execute(take, [number])
        if cursor.fetchone()[0] is False:
            raise BlockingIOError
    try:
        yield
    finally:
        with suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [number])


def reconnect() -> None:
    """Close a connection that failed; the next query opens a new one."""
    try:
        connection.close()
    except Exception:  # noqa: BLE001 -- the connection is broken already
        connection.connection = None


log = logging.getLogger("proxy.ledger")

FILE: Final = "DATABASE_URL_FILE"
RENEWED: Final = ("USER", "PASSWORD")


def renew() -> None:
    """Update user and password from the file; an unreadable file changes nothing.

    The call blocks: do not call it in the event loop.
    """
    path = os.environ.get(FILE)
    if path is None:
        return
    try:
        parsed = dj_database_url.parse(SECRET_FILES.read(path))
    except (ConfigError, ValueError):  # ConfigError is logged by SECRET_FILES
        return
    # The connections of all threads share these settings.
    settings = connections.settings[DEFAULT_DB_ALIAS]
    newer = {name: parsed[name] for name in RENEWED if parsed[name] != settings[name]}
    if newer and parsed["ENGINE"] == settings["ENGINE"]:
        settings.update(newer)
        log.info("the database's credentials were updated from %s", FILE)


TIMEOUT_S: Final = 2.0
# SQLite VM instructions between two checks of the time; they take some ms.
INSTRUCTIONS_PER_CHECK: Final = 20_000
TIMEOUT_MESSAGES: Final = ("interrupted", "statement timeout", "canceling statement")


class QueryTimeout(Exception):
    """The database stopped a query that exceeded the time limit."""


@contextmanager
def with_query_timeout(seconds: float = TIMEOUT_S) -> Iterator[None]:
    """Limit the time of the queries in the ``with`` block; raise QueryTimeout if it is exceeded."""
    try:
        if connection.vendor == "sqlite":
            with _sqlite_timeout(seconds):
                yield
        elif connection.vendor == "postgresql":
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL statement_timeout = %s", [int(seconds * 1000)])
                yield
        else:
            yield
    except OperationalError as exc:
        if any(text in str(exc) for text in TIMEOUT_MESSAGES):
            raise QueryTimeout from exc
        raise


@contextmanager
def _sqlite_timeout(seconds: float) -> Iterator[None]:
    connection.ensure_connection()
    raw: Any = connection.connection
    end = time.monotonic() + seconds
    raw.set_progress_handler(lambda: time.monotonic() > end, INSTRUCTIONS_PER_CHECK)
    try:
        yield
    finally:
        raw.set_progress_handler(None, 0)
