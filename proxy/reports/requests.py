"""The log: requests one by one."""

import logging
from datetime import UTC, datetime
from typing import Any

from django.db.models import QuerySet
from django.http import Http404, HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.audit_trail import note, note_of_key
from proxy.models import ApiKey, Exchange
from proxy.record import transcripts
from proxy.record.transcripts import BrokenTranscript, StoredTranscript
from proxy.visibility import Reader, visible_exchanges

from .access import IsKnown
from .answers import Export, columns_of, cursor_of, key_in, not_a_page
from .base import ReportView
from .request_filters import RequestParameters, filtered
from .rows import RequestRow, request_row

logger = logging.getLogger(__name__)


class RequestPage(serializers.Serializer[Any]):
    data = RequestRow(many=True)  # type: ignore[assignment]  # DRF takes fields off the class
    has_more = serializers.BooleanField()
    next_page = serializers.CharField(allow_null=True)


class RequestsView(ReportView):
    """Requests, newest first, by keyset: page 1,000 costs what page 1 costs."""

    parameters = RequestParameters
    permission_classes = (IsKnown,)  # an ordinary key sees its own rows

    @extend_schema(parameters=[RequestParameters], responses=RequestPage)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        if asked["format"] != "json":
            return self.rows_answer(asked, "requests", *every_request(self.reader, asked))
        rows = newest(self.reader, asked)
        if asked["page"]:
            at, ident = place_in(asked["page"])
            rows = rows.filter(created__lte=at).exclude(created=at, id__gte=ident)
        limit = asked["limit"]
        page = list(rows[: limit + 1])
        more = len(page) > limit
        last = page[limit - 1] if more else None
        return Response(
            {
                "data": [request_row(row) for row in page[:limit]],
                "has_more": more,
                "next_page": cursor_at(last.created, last.pk) if last else None,
            }
        )


def newest(reader: Reader, asked: dict[str, Any]) -> QuerySet[Exchange]:
    return filtered(visible_exchanges(reader), asked).order_by("-created", "-id")


def every_request(reader: Reader, asked: dict[str, Any]) -> Export:
    rows = newest(reader, asked).iterator(chunk_size=1000)
    return map(request_row, rows), columns_of(RequestRow())


def cursor_at(at: datetime, name: str) -> str:
    return cursor_of([at.isoformat(), name])


def place_in(cursor: str) -> tuple[datetime, str]:
    """Time and name of the row where a page ended."""
    key = key_in(cursor)
    try:
        at, name = key
        return datetime.fromisoformat(at).astimezone(UTC), str(name)
    except (ValueError, TypeError, OverflowError):
        raise not_a_page(cursor) from None


class OneView(ReportView):
    """What all views of one request share."""

    def find(self, request_id: str) -> Exchange:
        """The row, if it is the caller's to see; otherwise it does not exist for them (T10)."""
        row = visible_exchanges(self.reader).filter(pk=request_id).first()
        if row is None:
            raise Http404(f"no request {request_id[:40]!r}")
        return row


class RequestView(OneView):
    """One request."""

    permission_classes = (IsKnown,)

    @extend_schema(responses=RequestRow)
    def get(self, request: Request, request_id: str) -> HttpResponseBase:
        self.asked()
        return Response(request_row(self.find(request_id)))


def stored_of(row: Exchange) -> StoredTranscript | None:
    """What is kept of its words. A broken one is told as such: it is gone, however it went."""
    try:
        return transcripts.read(row.pk)
    except BrokenTranscript as exc:
        logger.warning("transcript of %s: %s", row.pk, exc)
        raise Http404(
            f"the transcript of {row.pk} is stored but broken: it cannot be read any more; "
            "manage.py verifyledger tells what else is"
        ) from None


def noted(request: Request, row: Exchange, message: str) -> None:
    """Each reading of somebody's words is in the admin's log (T43)."""
    if isinstance(request.auth, ApiKey):
        note_of_key(request.auth, row, message)
    else:
        note(request.user, row, message)
