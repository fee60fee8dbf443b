"""Output of report rows: JSON pages with a cursor, or CSV and NDJSON streams of all rows."""

import base64
import binascii
import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from proxy.audit_log import Action, record
from proxy.ledger.transcripts.visible_text import show_invisible

Row = dict[str, Any]
RowsAndColumns = tuple[Iterable[Row], Sequence[str]]
"""All rows of a report, as a lazy iterable, and the names of their columns."""

FORMULA_STARTS: Final = tuple("=+-@\t\r")
FORMATS: Final = ("json", "csv", "ndjson")
LINES_PER_CHUNK: Final = 500
Lines = Callable[[Iterable[Row], Sequence[str]], Iterator[str]]


def encode_cursor(key: Any) -> str:
    """Encode the position after a page as an opaque cursor; ``key`` is any JSON value."""
    encoded = json.dumps(key, separators=(",", ":"), default=str).encode()
    return "page_" + base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def decode_cursor(cursor: str) -> Any:
    """Decode a cursor of ``encode_cursor``. Raise ValidationError if it is invalid."""
    scheme, _, encoded = cursor.partition("_")
    try:
        padded = encoded + "=" * (-len(encoded) % 4)
        key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        key = None
    if scheme != "page" or key is None:
        raise invalid_cursor(cursor)
    return key


def invalid_cursor(cursor: str) -> ValidationError:
    message = f"expected the next_page of an earlier answer, not {cursor[:60]!r}"
    return ValidationError({"page": message})


def paginate(rows: Sequence[Row], limit: int, cursor: str) -> tuple[list[Row], str | None]:
    """Return one page of ``rows``, and the next page's cursor or None; a cursor has an offset."""
    start = decode_cursor(cursor) if cursor else 0
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise invalid_cursor(cursor)
    stop = start + limit
    return list(rows[start:stop]), encode_cursor(stop) if stop < len(rows) else None


def csv_cell(value: Any) -> Any:
    """Return the value as a CSV cell. Text like a spreadsheet formula is prefixed.

    Invisible characters are shown as their code points, because people read CSV.
    """
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, str):
        text = show_invisible(value.replace("\x00", ""))
        is_formula = text.lstrip(" \n\ufeff").startswith(FORMULA_STARTS) and not _is_number(text)
        return f"'{text}" if is_formula else text
    return value


def _is_number(text: str) -> bool:
    """Whether the text is a decimal number; a number such as ``-0.5`` is not a formula."""
    integer, _, fraction = text.removeprefix("-").partition(".")
    return (
        integer.isascii()
        and integer.isdigit()
        and (not fraction or (fraction.isascii() and fraction.isdigit()))
    )


def flatten(row: Row, prefix: str = "") -> Row:
    """Return the row without nested objects: their fields become columns like ``key.name``."""
    cells: Row = {}
    for name, value in row.items():
        if isinstance(value, dict) and value:
            cells |= flatten(value, f"{prefix}{name}.")
        else:
            cells[f"{prefix}{name}"] = value
    return cells


def column_names(serializer: serializers.Serializer[Any], prefix: str = "") -> list[str]:
    """Return the CSV columns of a serializer, with nested fields as columns like ``user.id``."""
    columns = []
    for name, field in serializer.fields.items():
        if field.write_only:
            continue
        if isinstance(field, serializers.Serializer):
            columns += column_names(field, f"{prefix}{name}.")
        elif parts := getattr(field, "columns", ()):
            columns += [f"{prefix}{name}.{part}" for part in parts]
        else:
            columns.append(f"{prefix}{name}")
    return columns


def get_nested(row: Row, column: str) -> Any:
    """Return the value of a nested column such as ``user.id``; None if ``user`` is null."""
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def csv_lines(rows: Iterable[Row], columns: Sequence[str] = ()) -> Iterator[str]:
    """Yield CSV lines, starting with a header: ``columns``, or the columns of the first row.

    A cell that contains an object has the object as JSON.
    """
    iterator = iter(rows)
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\r\n")
    header = list(columns)
    lines: Iterator[list[Any]] = ([get_nested(row, name) for name in header] for row in iterator)
    if not header and (first := next(iterator, None)) is not None:
        header = list(flatten(first))
        lines = ([flatten(row).get(name) for name in header] for row in chain([first], iterator))
    for cells in chain([list[Any](header)], lines):
        writer.writerow([csv_cell(value) for value in cells])
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def ndjson_lines(rows: Iterable[Row], columns: Sequence[str] = ()) -> Iterator[str]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=True, default=str) + "\n"


LINE_FORMATS: Final[Mapping[str, tuple[Lines, str]]] = {
    "csv": (csv_lines, "text/csv; charset=utf-8"),
    "ndjson": (ndjson_lines, "application/x-ndjson"),
}


def stream_rows(
    request: HttpRequest, rows: Iterable[Row], kind: str, name: str, columns: Sequence[str] = ()
) -> StreamingHttpResponse:
    """Return all rows as a streamed download, without having all of them in memory."""
    query = request.META.get("QUERY_STRING", "")
    record(Action.EXPORT, detail=f"{name} as {kind}" + (f": {query}" if query else ""))
    return download_response(request, encode_rows(rows, kind, columns), kind, name)


def download_response(
    request: HttpRequest, chunks: Iterator[bytes], kind: str, name: str
) -> StreamingHttpResponse:
    content: Any = _stream_in_thread(chunks) if isinstance(request, ASGIRequest) else chunks
    response = StreamingHttpResponse(content, content_type=LINE_FORMATS[kind][1])
    response["Content-Disposition"] = f'attachment; filename="{name}.{kind}"'
    return response


def encode_rows(rows: Iterable[Row], kind: str, columns: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield the rows as CSV or NDJSON bytes, in chunks of ``LINES_PER_CHUNK`` lines."""
    lines = LINE_FORMATS[kind][0](rows, columns)
    while chunk := list(islice(lines, LINES_PER_CHUNK)):
        yield "".join(chunk).encode()


async def _stream_in_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the chunks; read each in the same thread, because it owns the database connection."""
    next_chunk = sync_to_async(lambda: next(chunks, None))
    while (chunk := await next_chunk()) is not None:
        yield chunk
