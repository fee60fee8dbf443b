"""Change the tables of the test's database, on SQLite and PostgreSQL."""

import contextlib
from collections.abc import Iterator

from django.db import connection
from django.db.models import Model


def following_ids(model: type[Model], first: int) -> None:
    """Let the database give the ids from ``first`` on to the next rows of this table."""
    table = model._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("DELETE FROM sqlite_sequence WHERE name = %s", [table])
            cursor.execute("INSERT INTO sqlite_sequence VALUES (%s, %s)", [table, first - 1])
        else:
            cursor.execute(
                "SELECT setval(pg_get_serial_sequence(%s, 'id'), %s, false)", [table, first]
            )


@contextlib.contextmanager
def renamed(model: type[Model]) -> Iterator[None]:
    """Let statements that use this table fail in the block."""
    table = model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO hidden_table")
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE hidden_table RENAME TO {table}")
