"""One request's bodies as files: what the client sent and got, and the same on the upstream's side.

The client's bodies and the upstream's bytes are kept. What the gateway sent upstream, and the
events that the client heard, are made again from them by the translator that runs now.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.http import Http404, HttpResponse, HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request

from proxy.models import ApiKey
from proxy.record.rebuild import Replayed, replay
from proxy.record.transcripts import StoredTranscript
from translator.errors import TranslatorError
from translator.sse import format_sse

from .access import MayReadTranscripts
from .parameters import Number, ReportParameters
from .requests import OneView, noted, stored_of


class RawParameters(ReportParameters):
    """A body has one form; an upstream's may be of an attempt that failed."""

    format = None  # type: ignore[assignment]  # how DRF leaves out an inherited field
    attempt = Number(
        min_value=1,
        required=False,
        help_text="of upstream_response: what this attempt was told that failed; 1 is the first",
    )


class MayReadRaw(MayReadTranscripts):
    """Scope ``admin``; in a session ``view_transcript`` and ``view_part`` both."""

    message = "reading raw bodies needs a key with the scope 'admin'"

    def has_permission(self, request: Request, view: Any) -> bool:
        return super().has_permission(request, view) and (
            isinstance(request.auth, ApiKey) or bool(request.user.has_perm("proxy.view_part"))
        )


def _again(stored: StoredTranscript) -> Replayed:
    message_id = str((stored.answer or {}).get("id") or "")
    return replay(stored.request, stored.target, stored.upstream_reads, message_id=message_id)


def _packed(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _request(stored: StoredTranscript) -> bytes:
    raw = stored.conversation.raw
    return raw.text if raw else _packed(stored.request) if stored.request else b""


def _events(stored: StoredTranscript) -> bytes:
    return "".join(format_sse(event["type"], event) for event in _again(stored).events).encode()


JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
BYTES: Final = "application/octet-stream"
SIDES: Final[Mapping[str, tuple[Callable[[StoredTranscript], bytes], str, str]]] = {
    "request": (_request, JSON, "json"),
    "response": (lambda s: _packed(s.answer) if s.answer is not None else b"", JSON, "json"),
    "upstream_request": (lambda s: _packed(_again(s).body), JSON, "json"),
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
    """``attempt``: of one that failed; None: of the answer. Empty: nothing is kept."""
    if attempt is None:
        return SIDES[side][0](stored)
    failed = stored.failed if side == "upstream_response" else ()
    return next((each.body.text for each in failed if each.number + 1 == attempt), b"")


class RawView(OneView):
    """One body of a request: request, response, upstream_request, upstream_response or events."""

    permission_classes = (MayReadRaw,)
    parameters = RawParameters

    @extend_schema(parameters=[SIDE], responses=FORMS)
    def get(self, request: Request, request_id: str, side: str) -> HttpResponseBase:
        attempt = self.asked().get("attempt")
        row = self.find(request_id)
        if side not in SIDES:
            raise Http404(f"no body {side[:40]!r}; there are {', '.join(SIDES)}")
        stored = stored_of(row)
        _, content_type, suffix = SIDES[side]
        try:
            body = _body(stored, side, attempt) if stored else b""
        except (LookupError, TranslatorError) as exc:
            raise Http404(f"{side} cannot be made again: {exc}") from None
        if not body:
            raise Http404(f"no {side} is kept for this request")
        noted(request, row, f"Downloaded the raw {side} by the reports.")
        answer = HttpResponse(body, content_type=content_type)
        answer["Content-Disposition"] = f'attachment; filename="{row.pk}.{side}.{suffix}"'
        answer["Content-Security-Policy"] = "sandbox; default-src 'none'"
        return answer
