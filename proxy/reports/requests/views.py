"""The views of the list of requests and of one request."""

import logging
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Final

from django.db.models import QuerySet
from django.http import Http404, HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.archive.reading import iterate_both, read_both, with_ids, within
from proxy.ledger.database.query_timeout import QueryTimeout, with_query_timeout
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.storage import BrokenTranscript, StoredTranscript
from proxy.models import Exchange
from proxy.permissions.readings import HEADER
from proxy.permissions.row_permissions import Reader, visible_exchanges
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.exception_handler import QueryTooSlow
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.rendering import (
    RowsAndColumns,
    column_names,
    decode_cursor,
    encode_cursor,
    invalid_cursor,
)

from .filters import RequestParameters, filter_requests
from .serializers import RequestRow, request_row

TIMEOUT_S: Final = 10.0
RESOLUTION: Final = timedelta(microseconds=1)

READING_REASON: Final = OpenApiParameter(
    HEADER,
    str,
    OpenApiParameter.HEADER,
    description="Why you read this; required for other people's if the gateway asks for reasons.",
)

logger = logging.getLogger(__name__)


class RequestPage(serializers.Serializer[Any]):
    data = RequestRow(many=True)  # type: ignore[assignment]  # DRF removes fields from the class
    has_more = serializers.BooleanField()
    next_page = serializers.CharField(allow_null=True)


class RequestsView(ReportView):
    """List requests, newest first, with keyset pagination.

    A page that takes longer than ``TIMEOUT_S`` gets 503; an export has no such limit.
    """

    parameters = RequestParameters
    permission_classes = (IsKeyOrStaff,)  # a key without scopes sees its own requests

    @extend_schema(parameters=[RequestParameters], responses=RequestPage)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        if query["format"] != "json":
            return self.rows_response(query, "requests", *export_requests(self.reader, query))
        rows = request_queryset(self.reader, query)
        months = within(query["time_range"].start, query["time_range"].end)
        if query["page"]:
            at, ident = decode_position(query["page"])
            rows = rows.filter(created__lte=at).exclude(created=at, id__gte=ident)
            months &= within(None, at + RESOLUTION)
        limit = query["limit"]
        try:
            with with_query_timeout(TIMEOUT_S):
                sides = read_both(rows, lambda rows: list(rows[: limit + 1]), months, TIMEOUT_S)
        except QueryTimeout:
            raise QueryTooSlow from None
        page = sorted(chain(*sides), key=newest_last, reverse=True)
        more = len(page) > limit
        last = page[limit - 1] if more else None
        return Response(
            {
                "data": [request_row(row) for row in page[:limit]],
                "has_more": more,
                "next_page": encode_position(last.created, last.pk) if last else None,
            }
        )


def request_queryset(reader: Reader, query: dict[str, Any]) -> QuerySet[Exchange]:
    return filter_requests(visible_exchanges(reader), query).order_by("-created", "-id")


def export_requests(reader: Reader, query: dict[str, Any]) -> RowsAndColumns:
    months = within(query["time_range"].start, query["time_range"].end)
    rows = iterate_both(request_queryset(reader, query), months, newest_last, reverse=True)
    return map(request_row, rows), column_names(RequestRow())


def newest_last(row: Exchange) -> tuple[datetime, str]:
    return row.created, row.pk


def encode_position(at: datetime, name: str) -> str:
    return encode_cursor([at.isoformat(), name])


def decode_position(cursor: str) -> tuple[datetime, str]:
    """Return the time and the id of a page's last row from a cursor. Raise ValidationError."""
    key = decode_cursor(cursor)
    try:
        at, name = key
        return datetime.fromisoformat(at).astimezone(UTC), str(name)
    except (ValueError, TypeError, OverflowError):
        raise invalid_cursor(cursor) from None


class RequestDetailBase(ReportView):
    """Base of the views that show one request."""

    def get_exchange(self, request_id: str) -> Exchange:
        """Return the exchange. Raise Http404 if it does not exist or is not visible (T10)."""
        rows = visible_exchanges(self.reader).filter(pk=request_id)
        for found in read_both(rows, list[Exchange], with_ids([request_id])):
            if found:
                return found[0]
        raise Http404(f"no request {request_id[:40]!r}")


class RequestView(RequestDetailBase):
    """Return one request."""

    permission_classes = (IsKeyOrStaff,)

    @extend_schema(responses=RequestRow)
    def get(self, request: Request, request_id: str) -> HttpResponseBase:
        self.validated_query()
        return Response(request_row(self.get_exchange(request_id)))


def read_transcript(row: Exchange) -> StoredTranscript | None:
    """Return the stored transcript, or None. Raise Http404 if the stored data is damaged."""
    try:
        return storage.read(row.pk)
    except BrokenTranscript as exc:
        logger.warning("transcript of %s: %s", row.pk, exc)
        raise Http404(
            f"the transcript of {row.pk} is stored but broken: it cannot be read any more; "
            "manage.py verifyledger lists all broken transcripts"
        ) from None
