"""Nodes that share a database start one after the other: two at once would migrate it twice."""

import contextlib
from collections.abc import Iterator
from typing import Final

from django.db import DatabaseError, connection

LOCK: Final = 0x6D62_7374  # "mbst": any number that is ours alone among advisory locks


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """Wait until no other node of this database is starting.

    A SQLite database has one node, whose data directory is locked already. A node that dies lets
    go of the lock with its connection.
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
