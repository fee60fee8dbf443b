"""Pages, order and filters of the lists that are database rows: DRF's own parts."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, cast

from django.db.models import QuerySet
from django.http import HttpResponseBase
from rest_framework import serializers
from rest_framework.filters import BaseFilterBackend, OrderingFilter
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.database.access import QueryTimeout, with_query_timeout
from proxy.models.ledger_names import with_names
from proxy.permissions.row_permissions import Reader

from .base_views import ReportView
from .exception_handler import QueryTooSlow
from .expansion import check_format, expand_parameter, expand_rows
from .query_parameters import (
    Choice,
    JsonOnlyParameters,
    PageParameters,
    TimeRangeParameters,
    Values,
)
from .references import KeyId
from .rendering import RowsAndColumns, decode_cursor, encode_cursor, paged, shape_of


class CursorPages(CursorPagination):
    """Pages with an opaque cursor; the next page starts after the last row of a page."""

    cursor_query_param = "page"
    page_size_query_param = "limit"
    ordering: Any = "pk"

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> Any:
        order = ",".join(self.get_ordering(request, queryset, view))
        self.scope = f"{request.path}?{order}"
        self.query = view.query  # ``page`` and ``limit`` as the view has validated them
        return super().paginate_queryset(queryset, request, view)

    def get_page_size(self, request: Request) -> int:
        return int(self.query["limit"])

    def decode_cursor(self, request: Request) -> Cursor | None:
        if not self.query["page"]:
            return None
        offset, position = decode_cursor(self.query["page"], self.scope)
        return Cursor(offset=offset, reverse=False, position=position)

    def encode_cursor(self, cursor: Any) -> str:
        return encode_cursor([cursor.offset, cursor.position], self.scope)

    def get_paginated_response(self, data: Any) -> Response:
        return Response(paged(data, self.get_next_link()))

    def get_paginated_response_schema(self, schema: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["data", "has_more", "next_page"],
            "properties": {
                "data": schema,
                "has_more": {"type": "boolean"},
                "next_page": {
                    "type": "string",
                    "nullable": True,
                    "description": "The value of `page` for the next page; null on the last page.",
                },
            },
        }


def only_values(
    rows: QuerySet[Any], query: Mapping[str, Any], columns: Mapping[str, str]
) -> QuerySet[Any]:
    """Keep the rows whose columns have one of the values of the parameters of ``columns``."""
    chosen = {f"{column}__in": query[name] for name, column in columns.items() if query.get(name)}
    return rows.filter(**chosen)


class ColumnFilter(BaseFilterBackend):
    """Keep the rows whose columns have the values of the parameters of the same names.

    The view's ``filter_columns`` are the names with their database fields.
    """

    def filter_queryset(self, request: Request, queryset: Any, view: Any) -> Any:
        return only_values(queryset, view.query, view.filter_columns)


class SortFilter(OrderingFilter):
    """Order the rows by the column that ``sort`` names; ``-name`` is descending."""

    ordering_param = "sort"

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> Any:
        name = view.query.get("sort")
        if not name:
            return view.ordering
        field = view.sort_columns[name.removeprefix("-")]
        return (f"-{field}" if name.startswith("-") else field, "pk")


IDS: Final[Mapping[str, Callable[[], serializers.Field[Any, Any, Any, Any]]]] = {
    "key_id": KeyId,
    "webhook_id": partial(serializers.IntegerField, min_value=1, max_value=2**63 - 1),
}
"""The type of the filters by an id that is not a name."""


def list_parameters(
    filters: Mapping[str, str], sorts: Mapping[str, str], paths: Sequence[str]
) -> type[PageParameters]:
    """Return the serializer of a list's parameters: pages, filters, ``sort`` and ``expand``."""
    fields: dict[str, Any] = {
        name: Values(
            help_text=f"Only rows with these values of `{name}`.",
            **({"child": IDS[name]()} if name in IDS else {}),
        )
        for name in filters
    }
    orders = [f"{sign}{name}" for name in sorts for sign in ("", "-")]
    fields["sort"] = Choice(
        choices=orders, required=False, help_text="The column to sort by; `-` for descending."
    )
    if paths:
        fields["expand"] = expand_parameter(paths)
    return cast("type[PageParameters]", shape_of("ListParameters", fields, PageParameters))


def row_parameters(paths: Sequence[str]) -> type[JsonOnlyParameters]:
    """Return the serializer of the parameters of one row."""
    fields = {"expand": expand_parameter(paths)} if paths else {}
    return cast("type[JsonOnlyParameters]", shape_of("RowParameters", fields, JsonOnlyParameters))


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


class KeysetView(ReportView):
    """Base of the lists in the order of time: their rows have a time ``created``.

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
        rows = cls.matching_rows(reader, query).order_by(*_order(query))
        return map(cls.row_of, with_names(rows.iterator(chunk_size=1000))), cls.columns

    def get(self, request: Request) -> HttpResponseBase:
        query = self.query = self.validated_query()
        if query["format"] != "json":
            exported = self.export(self.reader, query)
            return self.rows_response(query, self.file_name, *exported)
        pages = CursorPages()
        pages.ordering = _order(query)
        try:
            with with_query_timeout(TIMEOUT_S):
                rows = self.matching_rows(self.reader, query)
                page = pages.paginate_queryset(rows, request, self)
        except QueryTimeout:
            raise QueryTooSlow from None
        shown = [self.row_of(row) for row in with_names(page)]
        return pages.get_paginated_response(expand_rows(request, shown, query.get("expand", ())))


def _order(query: Mapping[str, Any]) -> tuple[str, str]:
    sign = "-" if query["sort"] == NEWEST else ""
    return f"{sign}created", f"{sign}pk"
