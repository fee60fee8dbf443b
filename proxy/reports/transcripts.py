"""What was said in one request, and what became of the tools that it called."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from django.http import Http404, HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.models import Exchange
from proxy.record import transcripts
from proxy.record.transcripts import BrokenTranscript
from proxy.visibility import Reader, visible_exchanges

from .access import MayReadTranscripts
from .parameters import OnlyJson
from .requests import OneView, noted, stored_of
from .turns import Told, blotted, calls_in, results_in, system_of, tools_of, turns_of

LONGEST_TOOL: Final = timedelta(hours=1)
"""How long a next request is looked for where no session says which are of one conversation."""

Rows = Mapping[str, Exchange]


class TranscriptParameters(OnlyJson):
    redact = serializers.BooleanField(
        default=False, help_text="Tell how long each text is, and not a word of it."
    )


class TurnShape(serializers.Serializer[Any]):
    i = serializers.IntegerField()
    role = serializers.CharField(allow_null=True)
    new = serializers.BooleanField(help_text="The request before did not send it.")
    blocks = serializers.ListField(child=serializers.DictField())


class TranscriptAnswer(serializers.Serializer[Any]):
    request_id = serializers.CharField()
    system = serializers.ListField(child=serializers.DictField())
    tools = serializers.ListField(child=serializers.DictField())
    turns = TurnShape(many=True, help_text="The history; an answer is the last of them.")
    stop_reason = serializers.CharField()
    previous_request_id = serializers.CharField(allow_null=True)


class TranscriptView(OneView):
    """What was said in one request: system, tools, turns of blocks; the answer is the last turn."""

    permission_classes = (MayReadTranscripts,)
    parameters = TranscriptParameters

    @extend_schema(parameters=[TranscriptParameters], responses=TranscriptAnswer)
    def get(self, request: Request, request_id: str) -> HttpResponseBase:
        redact = self.asked()["redact"]
        row = self.find(request_id)
        stored = stored_of(row)
        if stored is None:
            raise Http404("no transcript is kept for this request")
        noted(request, row, "Read the transcript by the reports.")
        system = system_of(stored.request.get("system"))
        turns = turns_of(stored.request.get("messages"), stored.answer, row.new_from)
        _pair(self.reader, row, turns, answered=stored.answer is not None)
        if redact:
            system = [blotted(block) for block in system]
            turns = [turn | {"blocks": [blotted(b) for b in turn["blocks"]]} for turn in turns]
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


def _pair(reader: Reader, row: Exchange, turns: list[Told], *, answered: bool) -> None:
    """Tell each call of a client's tool which request brought its result, how soon, and if well."""
    calls = {str(call["id"]): call for call in calls_in(turns)}
    if not calls:
        return
    rows = _conversation(reader, row)
    for call_id, number, is_error in results_in(turns):
        if call_id in calls:
            bringer = _bringer(rows, row, number)
            calls[call_id]["result"] = _result(rows, bringer, is_error=is_error)
    if answered and any(calls_in(turns[-1:])):
        following = min(
            (each for each in rows.values() if each.previous_id == row.pk),
            key=lambda each: (each.created, each.pk),
            default=None,
        )
        for call_id, is_error in _results_of(following):
            if call_id in calls and calls[call_id]["result"] is None:
                calls[call_id]["result"] = _result(rows, following, is_error=is_error)


def _conversation(reader: Reader, row: Exchange) -> Rows:
    """The rows around this one, by id: of its session, else those that go on directly."""
    seen = visible_exchanges(reader)
    if row.session_id:
        near = seen.filter(session_id=row.session_id)
    else:
        soon = (row.created, row.created + LONGEST_TOOL)
        after = seen.filter(key_id=row.key_id, created__range=soon, previous_id=row.pk)
        near = seen.filter(pk__in=[row.previous_id, *after.values_list("pk", flat=True)])
    columns = ("previous_id", "new_from", "created", "finished")
    return {each.pk: each for each in [*near.only(*columns), row]}


def _bringer(rows: Rows, row: Exchange, number: int) -> Exchange | None:
    """The request that was the first to send this message; None where its row is not there."""
    each: Exchange | None = row
    while each is not None and each.new_from > number:
        each = rows.get(each.previous_id)
    return each


def _result(rows: Rows, bringer: Exchange | None, *, is_error: bool) -> Told:
    asked = rows.get(bringer.previous_id) if bringer is not None else None
    ms = None
    if bringer is not None and asked is not None and asked.finished is not None:
        ms = max(0, round((bringer.created - asked.finished) / timedelta(milliseconds=1)))
    return {"request_id": bringer.pk if bringer else None, "ms": ms, "is_error": is_error}


def _results_of(row: Exchange | None) -> Iterator[tuple[str, bool]]:
    """The tool results that a request brought; none where its words are not kept."""
    try:
        stored = transcripts.read(row.pk) if row is not None else None
    except BrokenTranscript:
        return
    if row is not None and stored is not None:
        new = turns_of(stored.request.get("messages"), None, row.new_from)[row.new_from :]
        yield from ((call_id, is_error) for call_id, _, is_error in results_in(new))
