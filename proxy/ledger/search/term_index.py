"""The full-text index of the database: FTS5 on SQLite, ``tsvector`` with GIN on PostgreSQL.

Both store the terms of an entry without positions, in partitions by the entry's id: a search reads
the newest partition first. So a common word is found without reading the whole index, which neither
database could read in the order of the ids. On SQLite a partition is a table of its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from django.db import connection

from proxy.ledger.database.bulk_sql import MAX_KEYS

from .query import Condition

TABLE: Final = "proxy_searchterms"
ENTRIES_PER_PARTITION: Final = 2**17
MAX_PARTITIONS: Final = 32  # that one query reads
FETCHED: Final = 1000

SQLITE_TABLE: Final = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS {} USING fts5(terms, content='', columnsize=0, "
    "detail=none, tokenize='ascii')"
)
SQLITE_PARTITIONS: Final = (
    "SELECT name FROM sqlite_master "
    "WHERE name GLOB 'proxy_searchterms_[0-9]*' AND sql LIKE '%VIRTUAL%'"
)
POSTGRESQL_TABLE: Final = (
    f"CREATE TABLE {TABLE} (entry_id bigint PRIMARY KEY, terms tsvector NOT NULL) "
    "PARTITION BY RANGE (entry_id)"
)
# A search also reads the pending list, so it is kept short: 1 MB.
POSTGRESQL_INDEX: Final = (
    f"CREATE INDEX {TABLE}_terms ON {TABLE} USING gin (terms) WITH (gin_pending_list_limit = 1024)"
)


def create_term_index(apps: Any, schema_editor: Any) -> None:
    """Create the partitioned table of PostgreSQL; a step of the migration."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(POSTGRESQL_TABLE)
        schema_editor.execute(POSTGRESQL_INDEX)


def _partition(entry: int) -> str:
    return f"{TABLE}_{entry // ENTRIES_PER_PARTITION}"


def _by_partition(terms: Mapping[int, Iterable[str]]) -> dict[str, list[tuple[int, str]]]:
    """Return the ids and terms of the entries, by the name of their partition."""
    rows: dict[str, list[tuple[int, str]]] = {}
    for entry, some in terms.items():
        rows.setdefault(_partition(entry), []).append((entry, " ".join(some)))
    return rows


def _sqlite_partitions(cursor: Any) -> list[int]:
    """Return the numbers of all partitions, newest first."""
    cursor.execute(SQLITE_PARTITIONS)
    return sorted((int(name.rpartition("_")[2]) for (name,) in cursor.fetchall()), reverse=True)


def add(terms: Mapping[int, Iterable[str]]) -> None:
    """Add entries to the index. ``terms`` has the terms of each entry, by its id."""
    if not terms:
        return
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            for name, lines in _by_partition(terms).items():
                cursor.execute(SQLITE_TABLE.format(name))
                cursor.executemany(f"INSERT INTO {name} (rowid, terms) VALUES (%s, %s)", lines)  # noqa: S608 -- a constant and a number  # nosec B608
            return
        _create_partitions(cursor, terms)
        rows = [(entry, list(some)) for entry, some in terms.items()]
        cursor.executemany(
            f"INSERT INTO {TABLE} (entry_id, terms) VALUES (%s, array_to_tsvector(%s::text[])) "  # noqa: S608 -- a constant  # nosec B608
            "ON CONFLICT (entry_id) DO NOTHING",
            rows,
        )


def _create_partitions(cursor: Any, entries: Iterable[int]) -> None:
    """Create missing partitions for these entries.

    A partition is created as a table and then attached: searches need not wait for that.
    """
    for number in {entry // ENTRIES_PER_PARTITION for entry in entries}:
        name = f"{TABLE}_{number}"
        cursor.execute("SELECT to_regclass(%s)", [name])
        if cursor.fetchone()[0] is not None:
            continue
        start = number * ENTRIES_PER_PARTITION
        end = start + ENTRIES_PER_PARTITION
        # The terms are stored apart from the rows: a search reads the ids of many rows.
        cursor.execute(
            f"CREATE TABLE {name} (LIKE {TABLE} INCLUDING ALL) WITH (toast_tuple_target = 128)"
        )
        cursor.execute(
            f"ALTER TABLE {TABLE} ATTACH PARTITION {name} FOR VALUES FROM ({start}) TO ({end})"
        )


def remove(terms: Mapping[int, Iterable[str]]) -> None:
    """Remove entries from the index.

    FTS5 needs the terms that an entry was added with; PostgreSQL ignores them.
    """
    if not terms:
        return
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            for name, lines in _by_partition(terms).items():
                cursor.executemany(
                    f"INSERT INTO {name} ({name}, rowid, terms) VALUES ('delete', %s, %s)",  # noqa: S608 -- a constant and a number  # nosec B608
                    lines,
                )
        else:
            cursor.execute(f"DELETE FROM {TABLE} WHERE entry_id = ANY(%s)", [list(terms)])  # noqa: S608 -- a constant  # nosec B608


def clear() -> None:
    """Delete the whole index. The caller deletes all entries."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            for number in _sqlite_partitions(cursor):
                cursor.execute(f"DROP TABLE {TABLE}_{number}")
        else:
            cursor.execute(f"TRUNCATE {TABLE}")


def optimize() -> None:
    """Rewrite the FTS5 index without removed entries; PostgreSQL's autovacuum does so itself."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            for number in _sqlite_partitions(cursor):
                name = f"{TABLE}_{number}"
                cursor.execute(f"INSERT INTO {name} ({name}) VALUES ('optimize')")  # noqa: S608 -- a constant and a number  # nosec B608


def matches(conditions: Sequence[Condition], below: int | None) -> Iterator[list[int]]:
    """Yield the ids of the entries that meet all conditions, in batches, newest first.

    ``below``: only entries with a smaller id; None: all entries.
    """
    return (_sqlite_matches if connection.vendor == "sqlite" else _postgresql_matches)(
        conditions, below
    )


def _sqlite_matches(conditions: Sequence[Condition], below: int | None) -> Iterator[list[int]]:
    # Terms consist of letters and digits, so none contains a quotation mark.
    expression = " ".join(f'"{term}"{"*" if prefix else ""}' for term, prefix in conditions)
    bound = below if below is not None else 2**62
    with connection.cursor() as cursor:
        for number in _sqlite_partitions(cursor):
            if number * ENTRIES_PER_PARTITION >= bound:
                continue
            name = f"{TABLE}_{number}"
            cursor.execute(
                f"SELECT rowid FROM {name} WHERE {name} MATCH %s AND rowid < %s "  # noqa: S608 -- a constant and a number  # nosec B608
                "ORDER BY rowid DESC",
                [expression, bound],
            )
            while rows := cursor.fetchmany(MAX_KEYS):
                yield [row[0] for row in rows]


def _postgresql_matches(conditions: Sequence[Condition], below: int | None) -> Iterator[list[int]]:
    # As above: a term needs no escaping inside apostrophes.
    expression = " & ".join(f"'{term}'{':*' if prefix else ''}" for term, prefix in conditions)
    with connection.cursor() as cursor:
        if below is None:
            cursor.execute(f"SELECT coalesce(max(entry_id), 0) + 1 FROM {TABLE}")  # noqa: S608 -- a constant  # nosec B608
            below = int(cursor.fetchone()[0])
        # The planner would prefer a sequential scan for a common word; it reads all terms.
        cursor.execute("SET LOCAL enable_seqscan = off")
        count = 1
        while below > 0:
            start = ((below - 1) // ENTRIES_PER_PARTITION - count + 1) * ENTRIES_PER_PARTITION
            # MATERIALIZED, so that the planner uses the index of the terms, not of the ids.
            cursor.execute(
                f"WITH found AS MATERIALIZED (SELECT entry_id FROM {TABLE} WHERE terms @@ "  # noqa: S608 -- a constant  # nosec B608
                "%s::tsquery AND entry_id >= %s AND entry_id < %s) "
                "SELECT entry_id FROM found ORDER BY entry_id DESC LIMIT %s",
                [expression, start, below, FETCHED],
            )
            ids = [row[0] for row in cursor.fetchall()]
            yield from (ids[at : at + MAX_KEYS] for at in range(0, len(ids), MAX_KEYS))
            if len(ids) == FETCHED:
                below = ids[-1]
            else:
                below = start
                count = min(2 * count, MAX_PARTITIONS)
