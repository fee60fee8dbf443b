"""Write ledger rows to a Parquet file. Money is integers of nano-dollars, times are UTC."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
from django.db import models

from proxy.encryption.bodies import stored_text
from proxy.models import Exchange

from .duckdb_backend import load_duckdb, quote

CHUNK: Final = 20_000
ROW_GROUP: Final = 122_880
"""Rows with common statistics: a search for ids or for a time reads only some of the groups."""
SQL_TYPES: Final[Mapping[str, str]] = {
    "BooleanField": "BOOLEAN",
    "DateTimeField": "TIMESTAMP",
    "FloatField": "DOUBLE",
    "PositiveSmallIntegerField": "INTEGER",
    "PositiveIntegerField": "INTEGER",
    "BigIntegerField": "BIGINT",
    "PositiveBigIntegerField": "BIGINT",
    "CharField": "VARCHAR",
    "TextField": "VARCHAR",
    "GenericIPAddressField": "VARCHAR",
    "JSONField": "VARCHAR",
}
_fields: Final = Exchange._meta.concrete_fields  # noqa: SLF001 -- Django's documented model API
COLUMNS: Final = {field.attname: SQL_TYPES[field.get_internal_type()] for field in _fields}
JSON_COLUMNS: Final = [f.attname for f in _fields if isinstance(f, models.JSONField)]
TEXTS: Final = [f.attname for f in _fields if isinstance(f, models.TextField)]
TIMES: Final = [f.attname for f in _fields if isinstance(f, models.DateTimeField)]
_encode: Final = msgspec.json.Encoder().encode


def write(rows: Iterable[Exchange], path: Path) -> Iterator[int]:
    """Write the rows, which are sorted by id, to ``path``; yield the size of each chunk.

    Needed is a folder of its own: a database for the rows is created next to the file.
    """
    columns = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items())
    fields = ", ".join(f"{quote(name)}: {quote(kind)}" for name, kind in COLUMNS.items())
    lines = path.with_suffix(".ndjson")
    config = {"threads": 1, "memory_limit": "512MB"}
    with load_duckdb().connect(path.with_suffix(".duckdb"), config=config) as database:
        database.execute(f"CREATE TABLE archived ({columns})")
        iterator = iter(rows)
        while chunk := [_encode(_line(row)) for row in islice(iterator, CHUNK)]:
            lines.write_bytes(b"\n".join(chunk))
            database.execute(
                f"INSERT INTO archived BY NAME SELECT * FROM read_json({quote(str(lines))}, "  # noqa: S608 -- quoted  # nosec B608
                f"format = 'newline_delimited', columns = {{{fields}}})"
            )
            yield len(chunk)
        database.execute(
            f"COPY archived TO {quote(str(path))} "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP})"
        )


def _line(row: Exchange) -> dict[str, Any]:
    """Return the values of a row by column, as DuckDB reads them from JSON."""
    line = {name: getattr(row, name) for name in COLUMNS}
    for name in TIMES:
        at: datetime | None = line[name]
        line[name] = None if at is None else at.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    for name in TEXTS:  # as they are stored, encrypted if there is a body key
        line[name] = stored_text(line[name])
    for name in JSON_COLUMNS:  # as text, in the format of Django's JSON columns in SQLite
        line[name] = None if line[name] is None else json.dumps(line[name])
    return line
