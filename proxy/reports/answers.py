"""How rows leave: a JSON page with a cursor, or CSV and NDJSON streams of all of them."""

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

Row = dict[str, Any]
Export = tuple[Iterable[Row], Sequence[str]]
"""All rows of a list, made as they are asked for, and its columns."""

FORMULA_STARTS: Final = tuple("=+-@\t\r")
FORMATS: Final = ("json", "csv", "ndjson")
LINES_A_CHUNK: Final = 500
Lines = Callable[[Iterable[Row], Sequence[str]], Iterator[str]]


def cursor_of(key: Any) -> str:
    """Where a page ended, as a word that means nothing to the caller."""
    packed = json.dumps(key, separators=(",", ":"), default=str).encode()
    return "page_" + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def key_in(cursor: str) -> Any:
    """What ``cursor_of`` was given. Raises ValidationError on anything else."""
    mark, _, packed = cursor.partition("_")
    try:
        padded = packed + "=" * (-len(packed) % 4)
        found = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        found = None
    if mark != "page" or found is None:
        raise not_a_page(cursor)
    return found


def not_a_page(cursor: str) -> ValidationError:
    said = f"expected the next_page of an earlier answer, not {cursor[:60]!r}"
    return ValidationError({"page": said})


def page_of(rows: Sequence[Row], limit: int, cursor: str) -> tuple[list[Row], str | None]:
    """A page of rows that are computed anyway; the cursor counts them."""
    start = key_in(cursor) if cursor else 0
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise not_a_page(cursor)
    stop = start + limit
    return list(rows[start:stop]), cursor_of(stop) if stop < len(rows) else None


def cell(value: Any) -> Any:
    """One CSV cell. Text that a spreadsheet would run as a formula is quoted away (T28)."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, str):
        text = value.replace("\x00", "")
        risky = text.lstrip(" \n\ufeff").startswith(FORMULA_STARTS) and not _is_number(text)
        return f"'{text}" if risky else text
    return value


def _is_number(text: str) -> bool:
    """Whether a text is a plain decimal number such as our money: ``-0.5`` is no formula."""
    whole, _, part = text.removeprefix("-").partition(".")
    return whole.isascii() and whole.isdigit() and (not part or (part.isascii() and part.isdigit()))


def flat(row: Row, above: str = "") -> Row:
    """Nested objects as ``key.name`` columns."""
    cells: Row = {}
    for name, value in row.items():
        if isinstance(value, dict) and value:
            cells |= flat(value, f"{above}{name}.")
        else:
            cells[f"{above}{name}"] = value
    return cells


def columns_of(shape: serializers.Serializer[Any], above: str = "") -> list[str]:
    """The CSV columns of rows of one shape: ``user.id`` of what is nested, null or not."""
    columns = []
    for name, field in shape.fields.items():
        if isinstance(field, serializers.Serializer):
            columns += columns_of(field, f"{above}{name}.")
        else:
            columns.append(f"{above}{name}")
    return columns


def at(row: Row, column: str) -> Any:
    """What stands in a row under ``user.id``; None where there is no user."""
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def csv_lines(rows: Iterable[Row], columns: Sequence[str] = ()) -> Iterator[str]:
    """CSV with a header: ``columns``, else those of the first row. An object in a cell is JSON."""
    walk = iter(rows)
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\r\n")
    head = list(columns)
    lines: Iterator[list[Any]] = ([at(row, name) for name in head] for row in walk)
    if not head and (first := next(walk, None)) is not None:
        head = list(flat(first))
        lines = ([flat(row).get(name) for name in head] for row in chain([first], walk))
    for cells in chain([list[Any](head)], lines):
        writer.writerow([cell(value) for value in cells])
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def ndjson_lines(rows: Iterable[Row], columns: Sequence[str] = ()) -> Iterator[str]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=True, default=str) + "\n"


LINES: Final[Mapping[str, tuple[Lines, str]]] = {
    "csv": (csv_lines, "text/csv; charset=utf-8"),
    "ndjson": (ndjson_lines, "application/x-ndjson"),
}


def streamed(
    request: HttpRequest, rows: Iterable[Row], kind: str, name: str, columns: Sequence[str] = ()
) -> StreamingHttpResponse:
    """All rows as a download that never is in memory whole, whichever server we run under."""
    return download(request, packed(rows, kind, columns), kind, name)


def download(
    request: HttpRequest, chunks: Iterator[bytes], kind: str, name: str
) -> StreamingHttpResponse:
    content: Any = _walked(chunks) if isinstance(request, ASGIRequest) else chunks
    answer = StreamingHttpResponse(content, content_type=LINES[kind][1])
    answer["Content-Disposition"] = f'attachment; filename="{name}.{kind}"'
    return answer


def packed(rows: Iterable[Row], kind: str, columns: Sequence[str] = ()) -> Iterator[bytes]:
    """The rows as CSV or NDJSON, some hundred lines at a time."""
    lines = LINES[kind][0](rows, columns)
    while some := list(islice(lines, LINES_A_CHUNK)):
        yield "".join(some).encode()


async def _walked(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Each chunk is read in the thread that owns the database connection."""
    following = sync_to_async(lambda: next(chunks, None))
    while (chunk := await following()) is not None:
        yield chunk
