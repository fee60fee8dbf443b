"""A time limit, enforced by the database, for the queries of a page or a report."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import OperationalError, connection, transaction

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
