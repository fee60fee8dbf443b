"""The transcript of one request with the results of its tool calls, and its bodies as files.

The ledger stores the client's request, the response, and the bytes that the upstream sent. The
current translator computes the request to the upstream and the SSE events to the client from these.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from django.http import Http404, HttpResponse, HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.audit_log import Action
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.storage import BrokenTranscript, StoredTranscript
from proxy.ledger.transcripts.stream_replay import Replayed, replay
from proxy.models import ApiKey, Exchange
from proxy.permissions.readings import record_reading
from proxy.permissions.row_permissions import Reader, visible_exchanges
from proxy.reports.core.permissions import MayReadTranscripts
from proxy.reports.core.query_parameters import JsonOnlyParameters, Number, ReportParameters
from translator.errors import TranslatorError
from translator.stream.sse import format_sse

from .transcript_json import (
    JsonObject,
    calls_in,
    redact_text,
    results_in,
    system_of,
    tools_of,
    turns_of,
)
from .views import READING_REASON, RequestDetailBase, read_transcript

MAX_TOOL_TIME: Final = timedelta(hours=1)
"""If a request has no session id, the next request is searched within this time after it."""

Rows = Mapping[str, Exchange]


class TranscriptParameters(JsonOnlyParameters):
    redact = serializers.BooleanField(default=False, help_text="Replace each text by its length.")


class TurnShape(serializers.Serializer[Any]):
    i = serializers.IntegerField()
    role = serializers.CharField(allow_null=True)
    new = serializers.BooleanField(help_text="True if the previous request did not send it.")
    blocks = serializers.ListField(child=serializers.DictField())


class TranscriptAnswer(serializers.Serializer[Any]):
    request_id = serializers.CharField()
    system = serializers.ListField(child=serializers.DictField())
    tools = serializers.ListField(child=serializers.DictField())
    turns = TurnShape(many=True, help_text="The message history; the response is the last turn.")
    stop_reason = serializers.CharField()
    previous_request_id = serializers.CharField(allow_null=True)


class TranscriptView(RequestDetailBase):
    """Return the transcript of one request: system prompt, tools and turns."""

    permission_classes = (MayReadTranscripts,)
    parameters = TranscriptParameters

    @extend_schema(parameters=[READING_REASON], responses=TranscriptAnswer)
    def get(self, request: Request, request_id: str) -> HttpResponseBase:
        redact = self.validated_query()["redact"]
        row = self.get_exchange(request_id)
        stored = read_transcript(row)
        if stored is None:
            raise Http404("no transcript is stored for this request")
        detail = "redacted" if redact else "whole transcript"
        record_reading(self.reader, Action.READ, [row], detail=detail)
        system = system_of(stored.request.get("system"))
        turns = turns_of(stored.request.get("messages"), stored.answer, row.new_from)
        _match_tool_results(self.reader, row, turns, answered=stored.answer is not None)
        if redact:
            system = [redact_text(block) for block in system]
            turns = [turn | {"blocks": [redact_text(b) for b in turn["blocks"]]} for turn in turns]
        return Response(
            {
                "request_id": row.pk,
                "system": system,
                "tools": tools_of(stored.request.get("tools")),
                "turns": turns,
                "stop_reason": row.stop_reason,
                "previous_request_id": row.previous_id or None,
            }
        )


def _match_tool_results(
    reader: Reader, row: Exchange, turns: list[JsonObject], *, answered: bool
) -> None:
    """Set ``result`` of each tool call: the request with the tool result, ms, and ``is_error``."""
    calls = {str(call["id"]): call for call in calls_in(turns)}
    if not calls:
        return
    rows = _conversation(reader, row)
    for call_id, number, is_error in results_in(turns):
        if call_id in calls:
            sender = _request_that_sent(rows, row, number)
            calls[call_id]["result"] = _result(rows, sender, is_error=is_error)
    if answered and any(calls_in(turns[-1:])):
        next_request = min(
            (other for other in rows.values() if other.previous_id == row.pk),
            key=lambda other: (other.created, other.pk),
            default=None,
        )
        for call_id, is_error in _results_of(next_request):
            if call_id in calls and calls[call_id]["result"] is None:
                calls[call_id]["result"] = _result(rows, next_request, is_error=is_error)


def _conversation(reader: Reader, row: Exchange) -> Rows:
    """Return the requests of the same conversation, by request id.

    These are all requests of the session. If the request has no session id, they are the previous
    request and the requests that continue this one.
    """
    visible = visible_exchanges(reader)
    if row.session_id:
        rows = visible.filter(session_id=row.session_id)
    else:
        period = (row.created, row.created + MAX_TOOL_TIME)
        after = visible.filter(key_id=row.key_id, created__range=period, previous_id=row.pk)
        rows = visible.filter(pk__in=[row.previous_id, *after.values_list("pk", flat=True)])
    columns = ("previous_id", "new_from", "created", "finished")
    return {other.pk: other for other in [*rows.only(*columns), row]}


def _request_that_sent(rows: Rows, row: Exchange, number: int) -> Exchange | None:
    """Return the first request that contained message ``number``; None if it is not visible."""
    other: Exchange | None = row
    while other is not None and other.new_from > number:
        other = rows.get(other.previous_id)
    return other


def _result(rows: Rows, sender: Exchange | None, *, is_error: bool) -> JsonObject:
    caller = rows.get(sender.previous_id) if sender is not None else None
    ms = None
    if sender is not None and caller is not None and caller.finished is not None:
        ms = max(0, round((sender.created - caller.finished) / timedelta(milliseconds=1)))
    return {"request_id": sender.pk if sender else None, "ms": ms, "is_error": is_error}


def _results_of(row: Exchange | None) -> Iterator[tuple[str, bool]]:
    """Yield (tool_use_id, is_error) for each tool result that this request added.

    Without a stored transcript, nothing is yielded.
    """
    try:
        stored = storage.read(row.pk) if row is not None else None
    except BrokenTranscript:
        return
    if row is not None and stored is not None:
        new = turns_of(stored.request.get("messages"), None, row.new_from)[row.new_from :]
        yield from ((call_id, is_error) for call_id, _, is_error in results_in(new))


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
    events = _replay(stored).events if stored.upstream_reads else ()
    return "".join(format_sse(event["type"], event) for event in events).encode()


JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
BYTES: Final = "application/octet-stream"
SIDES: Final[Mapping[str, tuple[Callable[[StoredTranscript], bytes], str, str]]] = {
    "request": (_request, JSON, "json"),
    "response": (lambda s: _to_json(s.answer) if s.answer is not None else b"", JSON, "json"),
    "upstream_request": (lambda s: _to_json(_replay(s).body), JSON, "json"),
    "upstream_response": (lambda s: s.upstream_body, BYTES, "bin"),
    "events": (_events, EVENTS, "txt"),
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
