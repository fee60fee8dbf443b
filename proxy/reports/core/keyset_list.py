"""Lists of recorded rows in the order of time, with keyset pages: requests, and the audit log."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from django.core.exceptions import ValidationError as DjangoInvalid
from django.db.models import Q, QuerySet
from django.http import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.database.access import QueryTimeout, with_query_timeout
from proxy.models.ledger_names import with_names
from proxy.permissions.row_permissions import Reader

from .base_views import ReportView
from .exception_handler import QueryTooSlow
from .expansion import check_format, expand_rows
from .query_parameters import Choice, PageParameters, TimeRangeParameters
from .rendering import RowsAndColumns, decode_cursor, encode_cursor, invalid_cursor

TIMEOUT_S: Final = 10.0
NEWEST, OLDEST = "-created_at", "created_at"


class KeysetParameters(TimeRangeParameters, PageParameters):
    """A time range, pages and an order."""

    sort = Choice(
        choices=(NEWEST, OLDEST), default=NEWEST, help_text="Newest first, or oldest first."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        check_format(attrs)
        return attrs


def only_values(
    rows: QuerySet[Any], query: Mapping[str, Any], columns: Mapping[str, str]
) -> QuerySet[Any]:
    """Keep the rows whose columns have one of the values of the parameters of ``columns``."""
    chosen = {f"{column}__in": query[name] for name, column in columns.items() if query.get(name)}
    return rows.filter(**chosen)


class KeysetView(ReportView):
    """Base of the lists whose rows have a time ``created`` and a primary key.

    A page that takes longer than ``TIMEOUT_S`` gets 503; an export has no such limit.
    """

    file_name: ClassVar[str]
    row_of: ClassVar[Any]
    """A static function from a row of the database to a row of the list."""
    columns: ClassVar[Sequence[str]]

    @staticmethod
    def matching_rows(reader: Reader, query: Mapping[str, Any]) -> QuerySet[Any]:
        """Return the visible rows that the parameters select, in any order."""
        raise NotImplementedError

    @classmethod
    def export(cls, reader: Reader, query: dict[str, Any]) -> RowsAndColumns:
        rows = _ordered(cls.matching_rows(reader, query), query)
        return map(cls.row_of, with_names(rows.iterator(chunk_size=1000))), cls.columns

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        if query["format"] != "json":
            exported = self.export(self.reader, query)
            return self.rows_response(query, self.file_name, *exported)
        rows = _ordered(self.matching_rows(self.reader, query), query)
        if query["page"]:
            rows = rows.filter(_after(query["page"], query["sort"], rows.model))
        limit = query["limit"]
        try:
            with with_query_timeout(TIMEOUT_S):
                page = list(rows[: limit + 1])
        except QueryTimeout:
            raise QueryTooSlow from None
        last = page[limit - 1] if len(page) > limit else None
        shown = [self.row_of(row) for row in with_names(page[:limit])]
        return Response(
            {
                "data": expand_rows(request, shown, query.get("expand", ())),
                "has_more": last is not None,
                "next_page": encode_position(last.created, last.pk) if last else None,
            }
        )


def _ordered(rows: QuerySet[Any], query: Mapping[str, Any]) -> QuerySet[Any]:
    sign = "-" if query["sort"] == NEWEST else ""
    return rows.order_by(f"{sign}created", f"{sign}pk")


def _after(cursor: str, sort: str, model: Any) -> Q:
    """Return the condition for the rows after the position of a cursor."""
    at, text = decode_position(cursor)
    try:
        pk = model._meta.pk.to_python(text)  # noqa: SLF001 - documented by Django
        model._meta.pk.get_prep_value(pk)  # noqa: SLF001 - as above
    except (DjangoInvalid, ValueError):
        raise invalid_cursor(cursor) from None
    side = "lt" if sort == NEWEST else "gt"
    # The first condition lets the database start at the position in the index of `created`.
    from_there = Q(**{f"created__{side}e": at})
    return from_there & (Q(**{f"created__{side}": at}) | Q(created=at, **{f"pk__{side}": pk}))


def encode_position(at: datetime, name: Any) -> str:
    return encode_cursor([at.isoformat(), str(name)])


def decode_position(cursor: str) -> tuple[datetime, str]:
    """Return the time and the id of a page's last row from a cursor. Raise ValidationError."""
    key = decode_cursor(cursor)
    try:
        at, name = key
        return datetime.fromisoformat(at).astimezone(UTC), str(name)
    except (ValueError, TypeError, OverflowError):
        raise invalid_cursor(cursor) from None
