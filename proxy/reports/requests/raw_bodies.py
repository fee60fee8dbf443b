"""The bodies of one exchange as files: from and to the client, to and from the upstream.

The ledger stores the client's request, the response, and the bytes that the upstream sent. The
current translator computes the request to the upstream and the SSE events to the client from these.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.http import Http404, HttpResponse, HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request

from proxy.audit_log import Action
from proxy.ledger.transcripts.storage import StoredTranscript
from proxy.ledger.transcripts.stream_replay import Replayed, replay
from proxy.models import ApiKey
from proxy.permissions.readings import record_reading
from proxy.reports.core.permissions import MayReadTranscripts
from proxy.reports.core.query_parameters import Number, ReportParameters
from translator.errors import TranslatorError
from translator.stream.sse import format_sse

from .views import READING_REASON, RequestDetailBase, read_transcript


class RawParameters(ReportParameters):
    """Parameters of a raw body. ``attempt`` selects the upstream response to a failed attempt."""

    format = None  # type: ignore[assignment]  # None removes an inherited field in DRF
    attempt = Number(
        min_value=1,
        required=False,
        help_text="for upstream_response: the response to this failed attempt; 1 is the first",
    )


class MayReadRaw(MayReadTranscripts):
    """Require a key with scope ``admin``, or ``view_transcript`` and ``view_part`` in a session."""

    message = "reading raw bodies needs a key with the scope 'admin'"

    def has_permission(self, request: Request, view: Any) -> bool:
        return super().has_permission(request, view) and (
            isinstance(request.auth, ApiKey) or bool(request.user.has_perm("proxy.view_part"))
        )


def _replay(stored: StoredTranscript) -> Replayed:
    message_id = str((stored.answer or {}).get("id") or "")
    return replay(stored.request, stored.target, stored.upstream_reads, message_id=message_id)


def _to_json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _request(stored: StoredTranscript) -> bytes:
    raw = stored.conversation.raw_body
    return raw.text if raw else _to_json(stored.request) if stored.request else b""


def _events(stored: StoredTranscript) -> bytes:
    return "".join(format_sse(event["type"], event) for event in _replay(stored).events).encode()


JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
BYTES: Final = "application/octet-stream"
SIDES: Final[Mapping[str, tuple[Callable[[StoredTranscript], bytes], str, str]]] = {
    "request": (_request, JSON, "json"),
    "response": (lambda s: _to_json(s.answer) if s.answer is not None else b"", JSON, "json"),
    "upstream_request": (lambda s: _to_json(_replay(s).body), JSON, "json"),
    "upstream_response": (lambda s: s.upstream_body, BYTES, "bin"),
    "events": (lambda s: _events(s) if s.upstream_reads else b"", EVENTS, "txt"),
}
FORMS: Final = {
    (200, JSON): OpenApiTypes.OBJECT,
    (200, EVENTS): OpenApiTypes.STR,
    (200, BYTES): OpenApiTypes.BINARY,
}
SIDE: Final = OpenApiParameter("side", str, OpenApiParameter.PATH, enum=list(SIDES))


def _body(stored: StoredTranscript, side: str, attempt: int | None) -> bytes:
    """Return the stored or computed body; it is empty if it is not stored.

    ``attempt`` is the number of a failed upstream attempt, or None for the attempt that answered.
    """
    if attempt is None:
        return SIDES[side][0](stored)
    failed = stored.failed if side == "upstream_response" else ()
    return next((each.body.text for each in failed if each.number + 1 == attempt), b"")


class RawView(RequestDetailBase):
    """Download one body: request, response, upstream_request, upstream_response or events."""

    permission_classes = (MayReadRaw,)
    parameters = RawParameters

    @extend_schema(parameters=[SIDE, READING_REASON], responses=FORMS)
    def get(self, request: Request, request_id: str, side: str) -> HttpResponseBase:
        attempt = self.validated_query().get("attempt")
        row = self.get_exchange(request_id)
        if side not in SIDES:
            raise Http404(f"no body {side[:40]!r}; there are {', '.join(SIDES)}")
        stored = read_transcript(row)
        _, content_type, suffix = SIDES[side]
        try:
            body = _body(stored, side, attempt) if stored else b""
        except (LookupError, TranslatorError) as exc:
            raise Http404(f"{side} cannot be recomputed: {exc}") from None
        if not body:
            raise Http404(f"no {side} is stored for this request")
        detail = f"download of the raw {side}"
        record_reading(self.reader, Action.EXPORT, [row], detail=detail)
        response = HttpResponse(body, content_type=content_type)
        response["Content-Disposition"] = f'attachment; filename="{row.pk}.{side}.{suffix}"'
        response["Content-Security-Policy"] = "sandbox; default-src 'none'"
        return response
