"""A query of a window may take only so long: the database stops it, and the page says so (T29)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import OperationalError, connection, transaction

PATIENCE_S: Final = 2.0
STEPS: Final = 20_000  # of SQLite's machine between two looks at the clock: some milliseconds
STOPPED: Final = ("interrupted", "statement timeout", "canceling statement")


class TooSlow(Exception):
    """It was not found in time."""


@contextmanager
def patient(seconds: float = PATIENCE_S) -> Iterator[None]:
    """Queries inside end after so long, with TooSlow; other errors pass as they are."""
    try:
        if connection.vendor == "sqlite":
            with _watched(seconds):
                yield
        elif connection.vendor == "postgresql":
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL statement_timeout = %s", [int(seconds * 1000)])
                yield
        else:
            yield
    except OperationalError as exc:
        if any(word in str(exc) for word in STOPPED):
            raise TooSlow from exc
        raise


@contextmanager
def _watched(seconds: float) -> Iterator[None]:
    connection.ensure_connection()
    raw: Any = connection.connection
    end = time.monotonic() + seconds
    raw.set_progress_handler(lambda: time.monotonic() > end, STEPS)
    try:
        yield
    finally:
        raw.set_progress_handler(None, 0)
