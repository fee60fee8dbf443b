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
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE hidden_table RENAME TO {table}")


@contextlib.contextmanager
def failing_deletes(model: type[Model], message: str) -> Iterator[None]:
    """Let each deletion of a row of this table fail in the block."""
    table = model._meta.db_table
    create = f"CREATE TRIGGER failure BEFORE DELETE ON {table} "
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(f"{create} BEGIN SELECT RAISE(ABORT, '{message}'); END")
        else:
            cursor.execute(
                "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql "
                f"AS $$ BEGIN RAISE EXCEPTION '{message}'; END $$"
            )
            cursor.execute(f"{create} FOR EACH ROW EXECUTE FUNCTION fail()")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            on = "" if connection.vendor == "sqlite" else f" ON {table}"
            cursor.execute(f"DROP TRIGGER failure{on}")
