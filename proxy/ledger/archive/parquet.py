"""Write and read the Parquet files of a month: one of ledger rows, and one of transcripts.

Money is integers of nano-dollars, times are UTC without a zone. pyarrow is an optional package, so
it is imported when the first file is written or read.

The file of transcripts has two kinds of rows: a transcript with the ids of its parts, and a part,
which several transcripts may share. Both are stored as the database has them: compressed, and
encrypted if there is a body key.
"""

import importlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS, models

from proxy.encryption.bodies import stored_text, unseal
from proxy.ledger.database.bulk_sql import select, slices
from proxy.ledger.transcripts.part_codec import decode_manifest
from proxy.ledger.transcripts.storage import StoredPart, part_ids_in
from proxy.models import Exchange, Part, Transcript
from proxy.secrets import ConfigError

from .files import ArchiveError

GROUP_ROWS: Final = 20_000
GROUP_BYTES: Final = 16 * 2**20
"""At so many rows or bytes of transcripts, a row group is written: it is in memory as a whole. It
has common statistics, so a search for ids or for a time reads only some of the groups."""
READ_TOGETHER: Final = 1000
"""Rows of a file that become Python objects at a time."""
TRANSCRIPTS_TOGETHER: Final = 50
"""Transcripts or parts that are in memory at a time."""
TYPES: Final[Mapping[str, str]] = {
    "BooleanField": "bool",
    "DateTimeField": "timestamp[us]",
    "FloatField": "double",
    "PositiveSmallIntegerField": "int32",
    "PositiveIntegerField": "int32",
    "BigIntegerField": "int64",
    "PositiveBigIntegerField": "int64",
    "CharField": "string",
    "TextField": "string",
    "GenericIPAddressField": "string",
    "JSONField": "string",
}
_fields: Final = Exchange._meta.concrete_fields  # noqa: SLF001 -- Django's documented model API
COLUMNS: Final = {field.attname: TYPES[field.get_internal_type()] for field in _fields}
JSON_COLUMNS: Final = [f.attname for f in _fields if isinstance(f, models.JSONField)]
TEXTS: Final = [f.attname for f in _fields if isinstance(f, models.TextField)]
TIMES: Final = [f.attname for f in _fields if isinstance(f, models.DateTimeField)]
DEFAULTS: Final = {field.attname: field.get_default() for field in _fields}
"""The values of the columns that the file of an older version does not have."""
STORED: Final = ("exchange_id", "created", "prefix", "manifest", "stream")
TRANSCRIPT_COLUMNS: Final[Mapping[str, str]] = {
    "exchange_id": "string",  # null in the row of a part
    "team": "string",
    "created": "timestamp[us]",
    "prefix": "binary",
    "manifest": "binary",
    "stream": "binary",
    "parts": "int64[]",
    "part_id": "int64",  # null in the row of a transcript
    "digest": "binary",
    "data": "binary",
}

Condition = tuple[str, str, Any]
"""A column, an operator such as ``>=`` or ``in``, and a value; of several, all must be true."""


class ListedTranscript(NamedTuple):
    id: str
    team: str
    created: datetime  # in UTC, without a zone


def load_arrow(module: str = "pyarrow") -> ModuleType:
    """Import pyarrow. Raise ConfigError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(
            "archived months need pyarrow: pip install 'messages-bridge[archive]'"
        ) from None


def write(rows: Iterable[Exchange], path: Path) -> Iterator[int]:
    """Write the rows, which are sorted by id, to ``path``; yield the size of each row group."""
    return _write(path, COLUMNS, map(_line, rows))


def _line(row: Exchange) -> dict[str, Any]:
    """Return the values of a row by column."""
    line = {name: getattr(row, name) for name in COLUMNS}
    for name in TIMES:
        line[name] = line[name] and without_zone(line[name])
    for name in TEXTS:  # as they are stored, encrypted if there is a body key
        line[name] = stored_text(line[name])
    for name in JSON_COLUMNS:  # as text, in the format of Django's JSON columns in SQLite
        line[name] = None if line[name] is None else json.dumps(line[name])
    return line


def read(path: Path, *conditions: Condition) -> Iterator[Exchange]:
    """Yield the rows of a file that match the conditions, sorted by id. Raises ArchiveError."""
    for found in read_columns(path, (), *conditions):
        line = DEFAULTS | found
        for name in TIMES:
            line[name] = line[name] and line[name].replace(tzinfo=UTC)
        for name in TEXTS:
            line[name] = unseal(line[name])
        for name in JSON_COLUMNS:
            if isinstance(line[name], str):
                line[name] = json.loads(line[name])
        yield Exchange.from_db(DEFAULT_DB_ALIAS, list(COLUMNS), [line[name] for name in COLUMNS])


def with_keys(column: str, keys: Collection[Any]) -> tuple[Condition, ...]:
    """Match these values of a column; the bounds let the reader skip row groups."""
    return (column, ">=", min(keys)), (column, "<=", max(keys)), (column, "in", list(keys))


def write_transcripts(rows: models.QuerySet[Transcript], path: Path) -> Iterator[int]:
    """Write the transcripts and their parts to ``path``; yield the size of each row group.

    Raises MissingBodyKey: without the key, it is unknown which parts a transcript has.
    """
    return _write(path, TRANSCRIPT_COLUMNS, _transcripts_and_parts(rows))


def _transcripts_and_parts(rows: models.QuerySet[Transcript]) -> Iterator[dict[str, Any]]:
    wanted: set[int] = set()
    for row in rows.select_related("exchange").iterator(chunk_size=TRANSCRIPTS_TOGETHER):
        parts = part_ids_in(decode_manifest(row.pk, row.manifest))
        wanted |= parts
        line = {name: getattr(row, name) for name in STORED}
        line["created"] = without_zone(row.created)
        yield line | {"team": row.exchange.team, "parts": sorted(parts)}
    for some in slices(sorted(wanted), TRANSCRIPTS_TOGETHER):
        for pk, digest, data in select(Part, ("id", "digest", "data"), "id", some):
            yield {"part_id": pk, "digest": digest, "data": data}


def list_transcripts(path: Path) -> Iterator[ListedTranscript]:
    """Yield which transcripts a file has. Raises ArchiveError."""
    for line in read_columns(path, ("exchange_id", "team", "created"), ("exchange_id", ">", "")):
        yield ListedTranscript(*line.values())


def read_transcripts(
    path: Path, ids: Collection[str]
) -> Iterator[tuple[Transcript, list[StoredPart]]]:
    """Yield those of these requests' transcripts that a file has, with their parts.

    Raises ArchiveError.
    """
    for some in slices(sorted(ids), TRANSCRIPTS_TOGETHER):
        found = list(read_columns(path, (*STORED, "parts"), *with_keys("exchange_id", some)))
        wanted = {pk for line in found for pk in line["parts"]}
        columns = ("part_id", "digest", "data")
        lines = read_columns(path, columns, *with_keys("part_id", wanted)) if wanted else ()
        parts = {line["part_id"]: (line["part_id"], line["digest"], line["data"]) for line in lines}
        for line in found:
            own = [parts[pk] for pk in line.pop("parts") if pk in parts]
            line["created"] = line["created"].replace(tzinfo=UTC)
            yield Transcript(**line), own


def copy_transcripts(source: Path, path: Path, gone: Collection[str]) -> None:
    """Write a file again without the transcripts of these requests and the parts only they have."""
    used: set[int] = set()
    for line in read_columns(source, ("exchange_id", "parts"), ("exchange_id", ">", "")):
        if line["exchange_id"] not in gone:
            used.update(line["parts"])

    def is_kept(line: Mapping[str, Any]) -> bool:
        pk = line["exchange_id"]
        return line["part_id"] in used if pk is None else pk not in gone

    kept = filter(is_kept, read_columns(source, ()))
    for _ in _write(path, TRANSCRIPT_COLUMNS, kept):
        pass


def read_columns(
    path: Path, columns: Sequence[str], *conditions: Condition
) -> Iterator[dict[str, Any]]:
    """Yield these columns of a file's rows in their order; no names: all. Raises ArchiveError."""
    arrow = load_arrow()
    try:
        reader, to_filter = load_arrow("pyarrow.dataset"), load_arrow("pyarrow.parquet")
        found = reader.dataset(path, format="parquet").to_batches(
            columns=list(columns) or None,
            filter=to_filter.filters_to_expression(list(conditions)) if conditions else None,
            batch_size=READ_TOGETHER,
            # One thread and little memory: it may run in a process that streams.
            batch_readahead=0,
            fragment_readahead=0,
            fragment_scan_options=reader.ParquetFragmentScanOptions(pre_buffer=False),
            use_threads=False,
        )
        for batch in found:
            yield from batch.to_pylist()
    except (arrow.ArrowException, OSError) as exc:
        raise ArchiveError(f"an archived file cannot be read: {exc}") from exc


def _write(
    path: Path, columns: Mapping[str, str], lines: Iterable[Mapping[str, Any]]
) -> Iterator[int]:
    arrow = load_arrow()
    types = {"int64[]": arrow.list_(arrow.int64())}
    schema = arrow.schema(
        [(name, types.get(kind) or arrow.type_for_alias(kind)) for name, kind in columns.items()]
    )
    small = [name for name, kind in columns.items() if kind not in {"binary", "int64[]"}]
    with load_arrow("pyarrow.parquet").ParquetWriter(
        path, schema, compression="zstd", use_dictionary=small, write_statistics=small
    ) as writer:
        for group in _groups(lines):
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))
            yield len(group)


def _groups(lines: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    group: list[Mapping[str, Any]] = []
    size = 0
    for line in lines:
        group.append(line)
        size += sum(len(value) for value in line.values() if isinstance(value, bytes | memoryview))
        if len(group) == GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def without_zone(at: datetime) -> datetime:
    """Return a time as the files have it: in UTC, without a zone."""
    return at.astimezone(UTC).replace(tzinfo=None)
