"""Serialize the starts of gateways that share a database, so that only one migrates it."""

import contextlib
from collections.abc import Iterator
from typing import Final

from django.db import DatabaseError, connection

LOCK: Final = 0x6D62_7374  # "mbst"; id of the advisory lock, different from all other ids


@contextlib.contextmanager
def startup_lock() -> Iterator[None]:
    """Wait until no other gateway that uses this database is starting.

    A SQLite database is used by one gateway only, which has already locked its data directory.
    PostgreSQL releases the lock of a killed gateway when its connection ends.
    """
    if connection.vendor != "postgresql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK])
    try:
        yield
    finally:
        with contextlib.suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])
