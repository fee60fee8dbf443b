"""Output of report rows: JSON pages with a cursor, or CSV and NDJSON streams of all rows."""

import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain, islice
from typing import Any, Final, cast

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.core.signing import BadSignature, Signer
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


def encode_cursor(key: Any, scope: str) -> str:
    """Return the position after a page as an opaque cursor; ``key`` is any JSON value.

    Cursors are signed: a cursor of another ``scope``, whose positions may have another type, is
    invalid.
    """
    return "page_" + Signer(salt=f"cursor {scope}").sign_object(key, compress=True)


def decode_cursor(cursor: str, scope: str) -> Any:
    """Return the key in a cursor of ``encode_cursor``. Raise ValidationError for another text."""
    try:
        if cursor.startswith("page_"):
            signer = Signer(salt=f"cursor {scope}")
            return signer.unsign_object(cursor.removeprefix("page_"))
    except (BadSignature, ValueError):
        pass
    raise invalid_cursor(cursor)


def invalid_cursor(cursor: str) -> ValidationError:
    message = f"expected the next_page of an earlier answer, not {cursor[:60]!r}"
    return ValidationError({"page": message})


def paged(rows: Sequence[Row], next_page: str | None) -> Row:
    """Return the body of a page of a list."""
    return {"data": rows, "has_more": next_page is not None, "next_page": next_page}


def paginate(rows: Sequence[Row], query: Mapping[str, Any]) -> Row:
    """Return one page of ``rows`` as a body; the cursor has an offset."""
    start = decode_cursor(query["page"], "offset") if query["page"] else 0
    stop = start + query["limit"]
    more = encode_cursor(stop, "offset") if stop < len(rows) else None
    return paged(list(rows[start:stop]), more)


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


def shape_of(
    name: str, fields: Mapping[str, Any], base: type[Any] = serializers.Serializer, **more: Any
) -> type[serializers.Serializer[Any]]:
    """Return a serializer class with the fields of ``base`` and these, in this order.

    The name is that of the component in the OpenAPI document.
    """

    def get_fields(self: Any) -> dict[str, Any]:
        return {**super(made, self).get_fields(), **deepcopy(dict(fields))}

    made: Any = type(name, (base,), {"get_fields": get_fields, **more})
    return cast("type[serializers.Serializer[Any]]", made)


def page_of(row: type[serializers.Serializer[Any]]) -> type[serializers.Serializer[Any]]:
    """Return the serializer of a page of rows."""
    fields: Row = {
        "data": row(many=True),
        "has_more": serializers.BooleanField(),
        "next_page": serializers.CharField(allow_null=True),
    }
    return shape_of(f"{row.__name__.removesuffix('Row')}Page", fields)


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


def csv_lines(rows: Iterable[Row], columns: Sequence[str]) -> Iterator[str]:
    """Yield CSV lines, starting with the header ``columns``.

    A cell that contains an object has the object as JSON.
    """
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\r\n")
    cells = ([get_nested(row, name) for name in columns] for row in rows)
    for values in chain([columns], cells):
        writer.writerow([csv_cell(value) for value in values])
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def ndjson_lines(rows: Iterable[Row], columns: Sequence[str]) -> Iterator[str]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=True, default=str) + "\n"


LINE_FORMATS: Final[Mapping[str, tuple[Lines, str]]] = {
    "csv": (csv_lines, "text/csv; charset=utf-8"),
    "ndjson": (ndjson_lines, "application/x-ndjson"),
}


def stream_rows(
    request: HttpRequest, rows: Iterable[Row], kind: str, name: str, columns: Sequence[str]
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


def encode_rows(rows: Iterable[Row], kind: str, columns: Sequence[str]) -> Iterator[bytes]:
    """Yield the rows as CSV or NDJSON bytes, in chunks of ``LINES_PER_CHUNK`` lines."""
    lines = LINE_FORMATS[kind][0](rows, columns)
    while chunk := list(islice(lines, LINES_PER_CHUNK)):
        yield "".join(chunk).encode()


async def _stream_in_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the chunks; read each in the same thread, because it owns the database connection."""
    next_chunk = sync_to_async(lambda: next(chunks, None))
    while (chunk := await next_chunk()) is not None:
        yield chunk
