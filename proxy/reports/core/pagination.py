"""Pages, order and filters of the lists that are database rows: DRF's own parts."""

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlencode

from django.core.signing import BadSignature, Signer
from rest_framework import serializers
from rest_framework.filters import BaseFilterBackend, OrderingFilter
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response

from .expansion import expand_parameter
from .query_parameters import Choice, JsonOnlyParameters, PageParameters, Values
from .references import KeyId
from .rendering import invalid_cursor


class CursorPages(CursorPagination):
    """Pages with an opaque signed cursor; the next page starts after the last row of a page.

    The signature covers the path and the order, so that no cursor has a position of a wrong type.
    """

    cursor_query_param = "page"
    page_size_query_param = "limit"
    page_size = 100
    max_page_size = 1000
    ordering = "pk"

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> Any:
        order = ",".join(self.get_ordering(request, queryset, view))
        self.signer = Signer(salt=f"{request.path}?{order}")
        return super().paginate_queryset(queryset, request, view)

    def decode_cursor(self, request: Request) -> Cursor | None:
        text = request.query_params.get(self.cursor_query_param, "")
        if not text:
            return None
        try:
            signed = base64.urlsafe_b64decode(text.removeprefix("page_").encode() + b"==").decode()
            values = {name: one for name, (one,) in parse_qs(self.signer.unsign(signed)).items()}
        except (BadSignature, ValueError):
            raise invalid_cursor(text) from None
        position: Any = values.get("p")
        return Cursor(offset=int(values["o"]), reverse=False, position=position)

    def encode_cursor(self, cursor: Any) -> str:
        values = {"o": cursor.offset} | ({} if cursor.position is None else {"p": cursor.position})
        signed = self.signer.sign(urlencode(values)).encode()
        return "page_" + base64.urlsafe_b64encode(signed).decode().rstrip("=")

    def get_paginated_response(self, data: Any) -> Response:
        page = self.get_next_link() if self.has_next else None
        return Response({"data": data, "has_more": page is not None, "next_page": page})

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


class ColumnFilter(BaseFilterBackend):
    """Keep the rows whose columns have the values of the parameters of the same names.

    The view's ``filter_columns`` are the names with their database fields.
    """

    def filter_queryset(self, request: Request, queryset: Any, view: Any) -> Any:
        chosen = {
            f"{field}__in": values
            for name, field in view.filter_columns.items()
            if (values := view.query.get(name))
        }
        return queryset.filter(**chosen)


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
    return cast("type[PageParameters]", type("ListParameters", (PageParameters,), fields))


def row_parameters(paths: Sequence[str]) -> type[JsonOnlyParameters]:
    """Return the serializer of the parameters of one row."""
    fields = {"expand": expand_parameter(paths)} if paths else {}
    return cast("type[JsonOnlyParameters]", type("RowParameters", (JsonOnlyParameters,), fields))
