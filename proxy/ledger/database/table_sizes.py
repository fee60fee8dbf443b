"""The disk space of each table with its indexes."""

import contextlib
from pathlib import Path
from typing import NamedTuple

from django.apps import apps
from django.db import connection

SQLITE = """SELECT sum(pgsize) FROM dbstat WHERE name IN
            (SELECT name FROM sqlite_master WHERE tbl_name = %s)"""
POSTGRESQL = """SELECT coalesce(sum(pg_total_relation_size(relid)), pg_total_relation_size(%s))
                FROM pg_partition_tree(%s)"""

SEARCH_TERMS = "proxy_searchterms"
"""The full-text index, which has no model. SQLite stores it as tables with this prefix."""
SQLITE_TERMS = "SELECT sum(pgsize) FROM dbstat WHERE name GLOB 'proxy_searchterms_*'"


class TableSize(NamedTuple):
    table: str
    rows: int
    bytes: int


def sizes() -> list[TableSize]:
    """Return the size of each table of all apps, largest first."""
    sql = SQLITE if connection.vendor == "sqlite" else POSTGRESQL
    found = []
    with connection.cursor() as cursor:
        for table in apps.get_models(include_auto_created=True):
            name = table._meta.db_table  # noqa: SLF001 -- Django's documented model API
            cursor.execute(sql, [name] * sql.count("%s"))
            row = cursor.fetchone()
            rows = table._default_manager.count()  # noqa: SLF001 -- Django's documented model API
            found.append(TableSize(name, rows, int(row[0] or 0) if row else 0))
        is_sqlite = connection.vendor == "sqlite"
        cursor.execute(*((SQLITE_TERMS,) if is_sqlite else (sql, [SEARCH_TERMS] * 2)))
        entries = next(size.rows for size in found if size.table == "proxy_searchentry")
        found.append(TableSize(SEARCH_TERMS, entries, int(cursor.fetchone()[0] or 0)))
    return sorted(found, key=lambda size: size.bytes, reverse=True)


def journal_bytes(directory: Path) -> int:
    """Return the size of all journal files in this data directory, in bytes.

    It includes the reserve files and the records in quarantine.
    """
    total = 0
    for path in directory.glob("journal-*/**/*"):
        with contextlib.suppress(FileNotFoundError):  # another thread has just removed the file
            total += path.stat().st_size
    return total
