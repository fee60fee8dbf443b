"""Read and write many rows of a table with one SQL statement, on SQLite and PostgreSQL.

The ORM is too slow here: ``bulk_create`` makes 1,500 Python calls for one row of the ledger (0.3
ms, during which all streams wait for the interpreter lock), ``write`` about 30; an ORM query makes
800 calls, ``select`` 40. The statements are built from the model's fields.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, TypeVar

import msgspec
from django.db import connection, models

from proxy.encryption.bodies import stored_text
from proxy.models.encrypted_text import BodyTextField

Adapt = Callable[[Any], Any]
Key = TypeVar("Key")

MAX_KEYS: Final = 512  # the maximum in one SQL query; old versions of SQLite allow 999 variables
ABSENT: Final[Mapping[type, Sequence[Any]]] = {
    str: [f"-{number}" for number in range(MAX_KEYS)],
    bytes: [b"-%d" % number for number in range(MAX_KEYS)],
    int: range(-MAX_KEYS, 0),
}
"""Primary keys that no row has, by type; ``padded_keys`` appends them to a list of keys."""
EMPTY: Final[Mapping[type, str]] = {list: "[]", dict: "{}"}
_encode: Final = msgspec.json.Encoder().encode


def write(
    table: type[models.Model],
    rows: Iterable[Mapping[str, Any]],
    *,
    replaced: Collection[str] = (),
    added: Collection[str] = (),
) -> None:
    """Insert the rows, each given as a mapping of column names to values.

    If a row with the same primary key exists, its columns named in ``replaced`` get the new values,
    and the new numbers are added to its columns named in ``added``. If both collections are empty,
    no such row may exist.
    """
    columns = _columns(table)
    values_of = itemgetter(*(name for name, _ in columns))
    adapts = _column_adapter(connection.ops)
    adapted = [(at, adapts[kind]) for at, (_, kind) in enumerate(columns) if kind]
    lines = []
    for row in rows:
        line = list(values_of(row))
        for at, adapt in adapted:
            if line[at] is not None:
                line[at] = adapt(line[at])
        lines.append(line)
    if lines:
        with connection.cursor() as cursor:
            cursor.executemany(_statement(table, tuple(replaced), tuple(added)), lines)


def _column_adapter(ops: Any) -> dict[type, Adapt]:
    """Return functions that convert Python values for the database driver, by model field class.

    Texts, numbers and bytes need no conversion.
    """
    is_sqlite = connection.vendor == "sqlite"
    return {
        models.DateTimeField: _format_datetime if is_sqlite else ops.adapt_datetimefield_value,
        models.DateField: ops.adapt_datefield_value,
        models.GenericIPAddressField: ops.adapt_ipaddressfield_value,
        models.JSONField: _encode_json,
        BodyTextField: stored_text,
    }


def _format_datetime(value: datetime) -> str:
    """Format a datetime as Django does for SQLite, with 3 function calls instead of 11."""
    return str(value.astimezone(UTC).replace(tzinfo=None))


def _encode_json(value: Any) -> str:
    """Encode a value as JSON exactly as Django does: SQLite compares JSON columns as text."""
    if not value and type(value) in EMPTY:
        return EMPTY[type(value)]
    text = msgspec.json.format(_encode(value), indent=0)  # this takes 1 us; json.dumps takes 4
    return text.decode() if text.isascii() else json.dumps(value)


@lru_cache
def _columns(table: type[models.Model]) -> list[tuple[str, type | None]]:
    """Return each column's name, and its field class if its values must be converted, else None."""
    fields = table._meta.concrete_fields  # noqa: SLF001 -- Django's documented model API
    kinds = _column_adapter(connection.ops)
    return [
        (field.attname, next((kind for kind in kinds if isinstance(field, kind)), None))
        for field in fields
        if not isinstance(field, models.AutoField)
    ]


def slices(values: Sequence[Key], size: int = MAX_KEYS) -> Iterator[Sequence[Key]]:
    """Yield the keys in parts; those of the default size fit into one SQL query."""
    return (values[at : at + size] for at in range(0, len(values), size))


def padded_keys(keys: Sequence[Any]) -> list[Any]:
    """Pad the keys to a power of two with keys that no row has.

    A query with another number of keys is another prepared statement, of up to 140 KB, and a
    connection caches the last 128 statements: without padding, the cache grew to 3.5 MB within
    minutes at 2,200 concurrent streams.
    """
    missing = (1 << (len(keys) - 1).bit_length()) - len(keys) if keys else 0
    return [*keys, *(ABSENT[type(keys[0])][:missing] if missing else ())]


def select(
    table: type[models.Model], names: Sequence[str], by: str, keys: Sequence[Any]
) -> Iterator[Sequence[Any]]:
    """Yield the columns ``names`` of the rows whose column ``by`` is in ``keys``; JSON as text."""
    quoted = connection.ops.quote_name
    columns = ", ".join(map(quoted, names))
    begin = f"SELECT {columns} FROM {quoted(table._meta.db_table)} WHERE {quoted(by)} IN"  # noqa: S608, SLF001 -- names of models only, Django's documented model API  # nosec B608
    for at in range(0, len(keys), MAX_KEYS):
        some = padded_keys(keys[at : at + MAX_KEYS])
        with connection.cursor() as cursor:
            cursor.execute(f"{begin} ({', '.join(['%s'] * len(some))})", some)
            yield from cursor.fetchall()


def has_rows(table: type[models.Model]) -> bool:
    """Return whether the table has a row. This takes 40 function calls, not 300 as in the ORM."""
    own = connection.ops.quote_name(table._meta.db_table)  # noqa: SLF001 -- Django's documented model API
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM {own} LIMIT 1")  # noqa: S608 -- a model's name  # nosec B608
        return cursor.fetchone() is not None


@lru_cache
def _statement(table: type[models.Model], replaced: tuple[str, ...], added: tuple[str, ...]) -> str:
    quoted = connection.ops.quote_name
    meta = table._meta  # noqa: SLF001 -- Django's documented model API
    own, key = quoted(meta.db_table), quoted(meta.pk.attname)
    names = ", ".join(quoted(name) for name, _ in _columns(table))
    marks = ", ".join(["%s"] * len(_columns(table)))
    insert = f"INSERT INTO {own} ({names}) VALUES ({marks})"  # noqa: S608 -- names of models only  # nosec B608
    changes = [f"{name} = excluded.{name}" for name in map(quoted, replaced)]
    changes += [f"{name} = {own}.{name} + excluded.{name}" for name in map(quoted, added)]
    if not changes:
        return insert
    return f"{insert} ON CONFLICT ({key}) DO UPDATE SET {', '.join(changes)}"  # nosec B608
