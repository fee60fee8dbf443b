"""Write and read the Parquet files of a month: one of ledger rows, and one of transcripts.

Money is integers of nano-dollars, times are UTC. DuckDB is used as a library for these files only;
it is an optional package, so it is imported when the first file is written or read.

The file of transcripts has two kinds of rows: a transcript with the ids of its parts, and a part,
which several transcripts may share. Both are stored as the database has them: compressed, and
encrypted if there is a body key.
"""

import importlib
import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import msgspec
from django.db import DEFAULT_DB_ALIAS, models

from proxy.encryption.bodies import stored_text, unseal
from proxy.ledger.database.bulk_sql import MAX_KEYS, select
from proxy.ledger.transcripts.part_codec import decode_manifest
from proxy.ledger.transcripts.storage import part_ids_in
from proxy.models import Exchange, Part, Transcript
from proxy.secrets import ConfigError

from .files import ArchiveError

CHUNK: Final = 20_000
FETCHED: Final = 1000
"""Rows that are read from a file at a time."""
BLOBS_TOGETHER: Final = 50
"""Transcripts or parts that one statement inserts."""
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
DEFAULTS: Final = {field.attname: field.get_default() for field in _fields}
"""The values of the columns that the file of an older version does not have."""
TRANSCRIPT: Final[dict[str, str]] = {
    "exchange_id": "VARCHAR",
    "team": "VARCHAR",
    "created": "TIMESTAMP",
    "prefix": "BLOB",
    "manifest": "BLOB",
    "stream": "BLOB",
    "parts": "BIGINT[]",
}
PART: Final[dict[str, str]] = {
    "part_id": "BIGINT",
    "digest": "BLOB",
    "size": "BIGINT",
    "data": "BLOB",
}
_encode: Final = msgspec.json.Encoder().encode


class ArchivedTranscript(NamedTuple):
    """A transcript of a file. ``parts``: the ids of its parts."""

    row: Transcript
    parts: Sequence[int]


class ArchivedPart(NamedTuple):
    """A part of transcripts, as in the columns of ``Part``."""

    id: int
    digest: bytes
    size: int
    data: bytes


def load_duckdb() -> ModuleType:
    """Import DuckDB. Raise ConfigError with the command that installs it."""
    try:
        return importlib.import_module("duckdb")
    except ImportError:
        raise ConfigError(
            "archived months need DuckDB: pip install 'messages-bridge[archive]'"
        ) from None


def write(rows: Iterable[Exchange], path: Path) -> Iterator[int]:
    """Write the rows, which are sorted by id, to ``path``; yield the size of each chunk.

    Needed is a folder of its own: a database for the rows is created next to the file.
    """
    columns = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items())
    fields = ", ".join(f"{_quote(name)}: {_quote(kind)}" for name, kind in COLUMNS.items())
    lines = path.with_suffix(".ndjson")
    with _database(path.with_suffix(".duckdb")) as database:
        database.execute(f"CREATE TABLE archived ({columns})")
        iterator = iter(rows)
        while chunk := [_encode(_line(row)) for row in islice(iterator, CHUNK)]:
            lines.write_bytes(b"\n".join(chunk))
            database.execute(
                f"INSERT INTO archived BY NAME SELECT * FROM read_json({_quote(str(lines))}, "  # noqa: S608 -- quoted  # nosec B608
                f"format = 'newline_delimited', columns = {{{fields}}})"
            )
            yield len(chunk)
        _copy(database, "SELECT * FROM archived", path)


def _line(row: Exchange) -> dict[str, Any]:
    """Return the values of a row by column, as DuckDB reads them from JSON."""
    line = {name: getattr(row, name) for name in COLUMNS}
    for name in TIMES:
        at: datetime | None = line[name]
        line[name] = None if at is None else _without_zone(at).isoformat(" ")
    for name in TEXTS:  # as they are stored, encrypted if there is a body key
        line[name] = stored_text(line[name])
    for name in JSON_COLUMNS:  # as text, in the format of Django's JSON columns in SQLite
        line[name] = None if line[name] is None else json.dumps(line[name])
    return line


def read(path: Path, condition: str = "TRUE", *values: Any) -> Iterator[Exchange]:
    """Yield the rows of a file that match a condition in SQL, sorted by id as in the file.

    ``values``: the values of the condition's placeholders. Raises ArchiveError.
    """
    for found in _fetched(path, f"SELECT * FROM read_parquet(?) WHERE {condition}", values):  # noqa: S608 -- conditions of this package  # nosec B608
        line = DEFAULTS | found
        for name in TIMES:
            line[name] = line[name] and line[name].replace(tzinfo=UTC)
        for name in TEXTS:
            line[name] = unseal(line[name])
        for name in JSON_COLUMNS:
            if isinstance(found.get(name), str):
                line[name] = json.loads(line[name])
        yield Exchange.from_db(DEFAULT_DB_ALIAS, list(COLUMNS), [line[name] for name in COLUMNS])


def read_by_id(path: Path, ids: Collection[str]) -> Iterator[Exchange]:
    """Yield the rows of a file with these ids, sorted by id. Raises ArchiveError."""
    if ids:
        # The bounds let DuckDB skip row groups.
        condition = "id BETWEEN ? AND ? AND id IN (SELECT unnest(?))"
        yield from read(path, condition, min(ids), max(ids), list(ids))


def write_transcripts(rows: models.QuerySet[Transcript], path: Path) -> Iterator[int]:
    """Write the transcripts and their parts to ``path``; yield the number of transcripts.

    Needed is a folder of its own, as for ``write``. Raises MissingBodyKey: without the key, it is
    unknown which parts a transcript has.
    """
    columns = ", ".join(f'"{name}" {kind}' for name, kind in (TRANSCRIPT | PART).items())
    iterator = rows.select_related("exchange").iterator(chunk_size=BLOBS_TOGETHER)
    with _database(path.with_suffix(".duckdb")) as database:
        database.execute(f"CREATE TABLE archived ({columns})")
        while some := [_transcript_line(row) for row in islice(iterator, BLOBS_TOGETHER)]:
            _insert(database, TRANSCRIPT, some)
            yield len(some)
        wanted = database.cursor()
        wanted.execute("SELECT DISTINCT unnest(parts) AS id FROM archived ORDER BY id")
        while ids := [pk for (pk,) in wanted.fetchmany(MAX_KEYS)]:
            parts = [
                (pk, bytes(digest), size, bytes(data))
                for pk, digest, size, data in select(
                    Part, ("id", "digest", "size", "data"), "id", ids
                )
            ]
            for at in range(0, len(parts), BLOBS_TOGETHER):
                _insert(database, PART, parts[at : at + BLOBS_TOGETHER])
        _copy(database, "SELECT * FROM archived", path)


def _transcript_line(row: Transcript) -> Sequence[Any]:
    manifest = decode_manifest(row.pk, row.manifest)
    stream = None if row.stream is None else bytes(row.stream)
    return (
        row.pk, row.exchange.team, _without_zone(row.created), bytes(row.prefix),
        bytes(row.manifest), stream, sorted(part_ids_in(manifest)),
    )  # fmt: skip


def _insert(database: Any, columns: Mapping[str, str], lines: Sequence[Sequence[Any]]) -> None:
    names = ", ".join(columns)
    marks = ", ".join([f"({', '.join('?' * len(columns))})"] * len(lines))
    database.execute(
        f"INSERT INTO archived ({names}) VALUES {marks}",  # noqa: S608 -- constant names  # nosec B608
        [value for line in lines for value in line],
    )


def copy_transcripts(source: Path, path: Path, gone: Collection[str]) -> None:
    """Write a file again without the transcripts of these requests and the parts only they have."""
    with _database() as database:
        database.execute(
            "CREATE TEMP TABLE gone AS SELECT unnest(?::VARCHAR[]) AS id", [list(gone)]
        )
        quoted = _quote(str(source))
        database.execute(
            "CREATE TEMP TABLE used AS SELECT DISTINCT unnest(parts) AS id "  # noqa: S608 -- quoted  # nosec B608
            f"FROM read_parquet({quoted}) WHERE exchange_id NOT IN (SELECT id FROM gone)"
        )
        _copy(
            database,
            f"SELECT * FROM read_parquet({quoted}) WHERE exchange_id NOT IN "  # noqa: S608 -- quoted  # nosec B608
            "(SELECT id FROM gone) OR part_id IN (SELECT id FROM used)",
            path,
        )


def transcript_ids(path: Path, condition: str = "TRUE", *values: Any) -> Iterator[str]:
    """Yield the request ids of the transcripts that match a condition in SQL. Raises ArchiveError.

    The condition may use the columns ``exchange_id``, ``team`` and ``created``.
    """
    query = (
        "SELECT exchange_id FROM read_parquet(?) "  # noqa: S608 -- conditions of the callers  # nosec B608
        f"WHERE exchange_id IS NOT NULL AND ({condition})"
    )
    return (line["exchange_id"] for line in _fetched(path, query, values))


def teams(path: Path) -> list[str]:
    """Return the teams of the transcripts of a file. Raises ArchiveError."""
    query = "SELECT DISTINCT team FROM read_parquet(?) WHERE team IS NOT NULL ORDER BY team"
    return [line["team"] for line in _fetched(path, query, ())]


def transcripts_by_id(path: Path, ids: Collection[str]) -> Iterator[ArchivedTranscript]:
    """Yield the transcripts of these requests. Raises ArchiveError."""
    query = (
        f"SELECT {', '.join(TRANSCRIPT)} FROM read_parquet(?) "  # noqa: S608 -- constant names  # nosec B608
        "WHERE exchange_id IN (SELECT unnest(?::VARCHAR[])) ORDER BY exchange_id"
    )
    for line in _fetched(path, query, [list(ids)]):
        parts = line.pop("parts")
        del line["team"]
        line["created"] = line["created"].replace(tzinfo=UTC)
        yield ArchivedTranscript(Transcript(**line), parts)


def parts_by_id(path: Path, ids: Collection[int]) -> Iterator[ArchivedPart]:
    """Yield the parts of a file with these ids. Raises ArchiveError."""
    query = (
        f"SELECT {', '.join(PART)} FROM read_parquet(?) "  # noqa: S608 -- constant names  # nosec B608
        "WHERE part_id IN (SELECT unnest(?::BIGINT[])) ORDER BY part_id"
    )
    for line in _fetched(path, query, [list(ids)]):
        yield ArchivedPart(*line.values())


def _fetched(path: Path, query: str, values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query of a file, by the names of its columns."""
    with _database() as database:
        try:
            database.execute(query, [str(path), *values])
            names = [column[0] for column in database.description]
            while lines := database.fetchmany(FETCHED):
                for line in lines:
                    yield dict(zip(names, line, strict=True))
        except load_duckdb().Error as exc:
            raise ArchiveError(f"an archived file cannot be read: {exc}") from exc


@contextmanager
def _database(path: Path | None = None) -> Iterator[Any]:
    """Open DuckDB with a database file, or in memory; it downloads no extensions.

    One thread and little memory: it may run in a process that streams.
    """
    with tempfile.TemporaryDirectory(prefix="bridge-archive-") as folder:
        config = {
            "threads": 1,
            "memory_limit": "512MB",
            "temp_directory": folder,  # for sorts that exceed the memory
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with load_duckdb().connect(path or ":memory:", config=config) as database:
            yield database


def _copy(database: Any, query: str, path: Path) -> None:
    database.execute(
        f"COPY ({query}) TO {_quote(str(path))} "
        f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP})"
    )


def _quote(text: str) -> str:
    """Return the text as a SQL literal; DuckDB has no escapes in such a literal."""
    return "'" + text.replace("'", "''") + "'"


def _without_zone(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(tzinfo=None)
