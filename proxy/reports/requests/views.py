"""The views of the list of requests and of one request."""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from django.db.models import QuerySet
from django.http import Http404, HttpResponseBase
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.archive.reading import archived_month_of, restore_hint
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.storage import (
    BrokenTranscript,
    EncryptedTranscript,
    StoredTranscript,
)
from proxy.models import Exchange
from proxy.permissions.readings import HEADER
from proxy.permissions.row_permissions import Reader, visible_exchanges
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.exception_handler import MissingKey
from proxy.reports.core.expansion import REQUEST_PATHS, expand_rows
from proxy.reports.core.pagination import KeysetView, row_parameters
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.rendering import column_names, page_of

from .filters import RequestParameters, filter_requests
from .serializers import RequestRow, request_row

READING_REASON: Final = OpenApiParameter(
    HEADER,
    str,
    OpenApiParameter.HEADER,
    description="Why you read this; required for other people's if the gateway asks for reasons.",
)

logger = logging.getLogger(__name__)


class RequestsView(KeysetView):
    """List requests, newest first, with keyset pagination."""

    parameters, answer = RequestParameters, page_of(RequestRow)
    permission_classes = (IsKeyOrStaff,)  # a key without scopes sees its own requests
    file_name, columns = "requests", column_names(RequestRow())
    row_of: ClassVar = staticmethod(request_row)

    @staticmethod
    def matching_rows(reader: Reader, query: Mapping[str, Any]) -> QuerySet[Exchange]:
        return filter_requests(visible_exchanges(reader), query)


class RequestDetailBase(ReportView):
    """Base of the views that show one request."""

    def get_exchange(self, request_id: str) -> Exchange:
        """Return the exchange. Raise Http404 if it is missing, archived or not visible."""
        row = visible_exchanges(self.reader).filter(pk=request_id).first()
        if row is None:
            month = archived_month_of(request_id)
            hint = f"; {restore_hint([month])}" if month else ""
            raise Http404(f"no request {request_id[:40]!r}{hint}")
        return row


class RequestView(RequestDetailBase):
    """Return one request."""

    permission_classes = (IsKeyOrStaff,)
    parameters: ClassVar = row_parameters(REQUEST_PATHS)
    answer = RequestRow

    def get(self, request: Request, request_id: str) -> HttpResponseBase:
        paths = self.validated_query().get("expand", ())
        row = request_row(self.get_exchange(request_id))
        return Response(expand_rows(request, [row], paths)[0])


def read_transcript(row: Exchange) -> StoredTranscript | None:
    """Return the stored transcript, or None.

    Raise Http404 if the stored data is damaged, MissingKey if it is encrypted with an unknown key.
    """
    try:
        return storage.read(row.pk)
    except EncryptedTranscript as exc:
        raise MissingKey(exc.key_id) from None
    except BrokenTranscript as exc:
        logger.warning("transcript of %s: %s", row.pk, exc)
        raise Http404(
            f"the transcript of {row.pk} is stored but broken: it cannot be read any more; "
            "manage.py verifyledger lists all broken transcripts"
        ) from None
