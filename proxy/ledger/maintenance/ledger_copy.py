"""Copy all tables of a ledger into an empty PostgreSQL database.

The code of the ledger uses Django's default database, so the copy is made the default one: it is
prepared, filled and verified with the same code, and the copied one has the alias ``ORIGINAL``.
Each batch of rows is one transaction, which also stores the position in the table ``CopiedTable``:
a copy that was interrupted at any time continues there. Rows keep their primary keys. Only a few
rows are in memory at a time.

The files of archived months stay where they are. The copy has the table of these months, so it
reads the same files, and the verification of the copy compares them with its hash chain.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from datetime import date
from graphlib import TopologicalSorter
from typing import Any, Final, NamedTuple

import psycopg
from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.core.management.color import no_style
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connection, connections, models, transaction
from django.db.migrations.recorder import MigrationRecorder

from proxy.audit_log import Action, record
from proxy.ledger.search import indexer, term_index
from proxy.models import (
    ArchivedMonth,
    AuditEntry,
    CopiedTable,
    DrainWatermark,
    LedgerHead,
    Revision,
    SearchEntry,
    Team,
)
from proxy.secrets import ConfigError

ORIGINAL: Final = "original"
"""The alias of the database that was the default one before the ``with`` block."""


@contextlib.contextmanager
def default_database(settings: Mapping[str, Any]) -> Iterator[None]:
    """Make the database with these settings the default one inside the ``with`` block.

    The database that was the default one has the alias ``ORIGINAL`` in the block. Open connections
    of this thread are closed; no other thread may use the database meanwhile.
    """
    known = connections.settings
    original = known[DEFAULT_DB_ALIAS]
    _switch({DEFAULT_DB_ALIAS: dict(settings), ORIGINAL: original})
    try:
        yield
    finally:
        _switch({DEFAULT_DB_ALIAS: original})
        del known[ORIGINAL], connections[ORIGINAL]


def _switch(databases: dict[str, dict[str, Any]]) -> None:
    """Close all connections, and let the next ones use these settings."""
    connections.close_all()
    for alias, settings in connections.configure_settings(databases).items():
        connections.settings[alias] = settings
        connections[alias] = connections.create_connection(alias)
    ContentType.objects.clear_cache()  # the databases may have other ids


BATCH: Final = 1000
"""Rows in one transaction."""
FETCHED: Final = 200
"""Rows in memory at a time."""
FETCHED_BODIES: Final = 8
"""Rows in memory at a time of a table with binary columns, which may be large."""
INDEXED: Final = 100
"""Texts whose terms are in memory at a time."""
MADE_BY_MIGRATIONS: Final = frozenset(
    {"auth.Permission", "auth.Group", "auth.Group_permissions", "contenttypes.ContentType",
     "proxy.AuditEntry"}
)  # fmt: skip
"""The tables in which a new database has rows."""

Model = type[models.Model]


class CopyError(Exception):
    """The copy cannot continue; the message says why."""


class Count(NamedTuple):
    """The number of rows of a table in the original and in the copy."""

    table: str
    original: int
    copy: int


def tables() -> list[Model]:
    """Return the models of all tables, each after those that it refers to."""
    models_by_name = {
        name_of(model): model
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed and not model._meta.proxy and model is not CopiedTable  # noqa: SLF001 - documented by Django
    }
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, model in sorted(models_by_name.items()):
        fields = model._meta.concrete_fields  # noqa: SLF001 - documented by Django
        related: set[Any] = {field.related_model for field in fields if field.is_relation}
        sorter.add(name, *sorted(name_of(other) for other in related - {model}))
    return [models_by_name[name] for name in sorter.static_order()]


def name_of(model: Model) -> str:
    return model._meta.db_table  # noqa: SLF001 - documented by Django


def count_rows(model: Model, alias: str) -> int:
    return model._base_manager.using(alias).count()  # noqa: SLF001 - documented by Django


def source_state(alias: str = ORIGINAL) -> str:
    """Return a text that changes when a gateway or archivemonths changes this ledger."""
    head = LedgerHead.objects.using(alias).filter(pk=1).first() or LedgerHead()
    newest = [
        model.objects.using(alias).order_by("pk").values_list(field, flat=True).last()
        for model, field in ((Revision, "number"), (AuditEntry, "pk"), (DrainWatermark, "seen"))
    ]
    months = ArchivedMonth.objects.using(alias).order_by("pk")
    archived = map(":".join, months.values_list("state", "sha256", "removed_to"))
    state = " ".join(map(str, (head.sequence, bytes(head.digest).hex(), *newest, *archived)))
    return hashlib.sha256(state.encode()).hexdigest()


def is_unfinished() -> bool:
    """Return whether the default database is an unfinished copy."""
    found = connection.introspection.table_names()
    return name_of(CopiedTable) in found and CopiedTable.objects.exists()


def check_target() -> None:
    """Raise ConfigError if the default database is used already; it may not be migrated yet."""
    found = set(connection.introspection.table_names())
    known = {name_of(model) for model in tables()} | {MigrationRecorder.Migration._meta.db_table}  # noqa: SLF001 - documented by Django
    foreign = sorted(name for name in found - known if not name.startswith("proxy_"))
    if foreign:
        raise ConfigError(
            f"the target has a table {foreign[0]!r} of another program; name an empty database"
        )
    if name_of(Team) in found and not is_unfinished() and Team.objects.exists():
        raise ConfigError("the target contains a ledger already; name an empty database")


def begin(*, restart: bool) -> int:
    """Prepare the migrated default database; return the number of rows that it has already.

    Raises ConfigError if it is neither new nor an unfinished copy of the ledger as it is now.
    ``restart``: delete an unfinished copy and begin again.
    """
    source = source_state()
    unfinished = list(CopiedTable.objects.all())
    if unfinished and not restart:
        if any(table.source != source for table in unfinished):
            raise ConfigError(
                "the ledger has changed since this copy began; --restart begins it again"
            )
        return sum(table.rows for table in unfinished)
    for model in tables() if not unfinished else ():
        label = model._meta.label  # noqa: SLF001 - documented by Django
        if label not in MADE_BY_MIGRATIONS and count_rows(model, DEFAULT_DB_ALIAS):
            raise ConfigError(f"the target has rows in {name_of(model)}; name an empty database")
    copied = [name_of(model) for model in tables()] + [term_index.TABLE]
    with transaction.atomic():
        emptied = connection.ops.sql_flush(no_style(), [*copied, name_of(CopiedTable)])
        connection.ops.execute_sql_flush(emptied)
        CopiedTable.objects.bulk_create(CopiedTable(table=name, source=source) for name in copied)
    return 0


def copy() -> Iterator[int]:
    """Copy all rows that are not copied yet; yield the number of rows after each batch.

    Raises CopyError if PostgreSQL does not accept a row.
    """
    for model in tables():
        yield from _copy_table(model)
    yield from _index_terms()


def _copy_table(model: Model) -> Iterator[int]:
    progress = CopiedTable.objects.get(pk=name_of(model))
    # A row may refer to another row of its table, so such a table is one batch.
    is_tree = any(field.related_model is model for field in model._meta.concrete_fields)  # noqa: SLF001 - documented by Django
    while True:
        with transaction.atomic():
            count = _copy_batch(model, progress, None if is_tree else BATCH)
            progress.rows += count
            progress.save(update_fields=["position", "rows"])
        if not count:
            return
        yield count


def _copy_batch(model: Model, progress: CopiedTable, size: int | None) -> int:
    """Copy the next rows in the order of their primary keys; set the position to the last one."""
    meta = model._meta  # noqa: SLF001 - documented by Django
    fields = meta.concrete_fields
    rows = model._base_manager.using(ORIGINAL).order_by(*(key.attname for key in meta.pk_fields))  # noqa: SLF001 - documented by Django
    if progress.position is not None:
        after = tuple(map(_from_json, meta.pk_fields, progress.position))
        rows = rows.filter(pk__gt=after if len(after) > 1 else after[0])
    has_bodies = any(isinstance(field, models.BinaryField) for field in fields)
    values = rows.values_list(*(field.attname for field in fields))[:size]
    quoted = connection.ops.quote_name
    columns = ", ".join(quoted(str(field.column)) for field in fields)
    count = 0
    row: tuple[Any, ...] = ()
    try:
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY {quoted(meta.db_table)} ({columns}) FROM STDIN") as lines,
        ):
            for row in values.iterator(chunk_size=FETCHED_BODIES if has_bodies else FETCHED):
                lines.write_row(
                    tuple(
                        f.get_db_prep_save(v, connection) for f, v in zip(fields, row, strict=True)
                    )
                )
                count += 1
    except (DatabaseError, psycopg.Error) as error:
        place = f" after {progress.position}" if progress.position else ""
        cause = str(error).strip().splitlines()[0]
        raise CopyError(f"{meta.db_table}: the rows{place} cannot be copied: {cause}") from None
    if count:
        names = [field.attname for field in fields]
        keys = [row[names.index(key.attname)] for key in meta.pk_fields]
        progress.position = list(map(_as_json, keys))
    return count


def _as_json(key: Any) -> Any:
    if isinstance(key, date):
        return key.isoformat()  # a query accepts a date as text
    return bytes(key).hex() if isinstance(key, bytes | memoryview) else key


def _from_json(field: Any, key: Any) -> Any:
    column = field.target_field if field.is_relation else field
    return bytes.fromhex(key) if isinstance(column, models.BinaryField) else key


def _index_terms() -> Iterator[int]:
    """Add the terms of the copied search entries to the search index of the default database.

    The index of SQLite cannot be copied: it does not contain the terms as text.
    """
    progress = CopiedTable.objects.get(pk=term_index.TABLE)
    while True:
        after = progress.position or 0
        entries = SearchEntry.objects.filter(pk__gt=after).order_by("pk")[:INDEXED]
        ids = {(part, team): pk for part, team, pk in entries.values_list("part_id", "team", "pk")}
        if not ids:
            return
        with transaction.atomic():
            term_index.add(dict(indexer.terms_of_entries(ids)))
            progress.position, progress.rows = max(ids.values()), progress.rows + len(ids)
            progress.save(update_fields=["position", "rows"])
        yield len(ids)


def rows_to_copy() -> int:
    """Return the number of rows that a complete copy has, with those of the search index."""
    indexed = count_rows(SearchEntry, ORIGINAL)
    return indexed + sum(count_rows(model, ORIGINAL) for model in tables())


def counts() -> list[Count]:
    """Return the number of rows of each table in both databases.

    The search index has the terms of each search entry.
    """
    indexed = CopiedTable.objects.get(pk=term_index.TABLE).rows
    return [
        *(
            Count(name_of(model), count_rows(model, ORIGINAL), count_rows(model, DEFAULT_DB_ALIAS))
            for model in tables()
        ),
        Count(term_index.TABLE, count_rows(SearchEntry, ORIGINAL), indexed),
    ]


def finish() -> None:
    """Let a gateway use the copy: set the sequences of the primary keys, and end the copy."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            for statement in connection.ops.sequence_reset_sql(no_style(), tables()):
                cursor.execute(statement)
        CopiedTable.objects.all().delete()
        record(Action.RUN, detail="the ledger was copied from another database")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
