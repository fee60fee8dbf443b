"""What would become of a request: each door before an upstream, and what is left of it."""

from typing import Any, ClassVar

from django.http import Http404, HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.admission import DOORS, Fate, Finding, NotServing, Rehearsal, Wish, rehearse
from proxy.models import ApiKey
from proxy.visibility import as_seen_by, visible_keys

from .access import IsKnown
from .answers import Row
from .base import ReportView
from .exports import Conflict
from .lists import MayReadSetup, iso
from .parameters import Number, OnlyJson
from .sums import usd


class WishParameters(OnlyJson):
    model = serializers.CharField(max_length=200, help_text="As a client would name it.")
    input_tokens = Number(min_value=0, max_value=10**9, default=1000)
    max_tokens = Number(min_value=1, max_value=10**9, default=1000)
    ip = serializers.IPAddressField(
        default="", help_text="Where it comes from; else a rule of addresses is `unknown`."
    )


class DoorRow(serializers.Serializer[Any]):
    door = serializers.ChoiceField(choices=[door.name for door in DOORS])
    of = serializers.CharField(help_text="Whose: key platform/ci, team platform, user ada.")
    fate = serializers.ChoiceField(
        choices=[fate.value for fate in Fate], help_text="tells: a budget that only warns."
    )
    status = serializers.IntegerField(help_text="Of the answer, should it refuse.")
    unit = serializers.CharField(allow_null=True, help_text="requests, tokens or usd")
    limit = serializers.CharField(allow_null=True)
    used = serializers.CharField(allow_null=True, help_text="With what running requests hold.")
    left = serializers.CharField(allow_null=True)
    takes = serializers.CharField(allow_null=True, help_text="What this request would take.")
    period = serializers.CharField(allow_null=True, help_text="Of a budget: day, week or month.")
    resets_at = serializers.CharField(
        allow_null=True, help_text="When a bucket is full again, or a budget's period ends."
    )


class RehearsalAnswer(serializers.Serializer[Any]):
    admitted = serializers.BooleanField()
    refused_by = serializers.CharField(allow_null=True, help_text="The first door that refuses.")
    route = serializers.CharField(allow_null=True, help_text="As configured: claude-*")
    targets = serializers.ListField(child=serializers.CharField())
    worst_case_usd = serializers.CharField(allow_null=True, help_text="null: no price is known")
    doors = DoorRow(many=True, help_text="In the order in which they are asked.")


def told(found: Rehearsal) -> Row:
    refused = found.refused_by
    return {
        "admitted": refused is None,
        "refused_by": refused.door.name if refused else None,
        "route": found.route or None,
        "targets": list(found.targets),
        "worst_case_usd": None if found.worst_case is None else usd(found.worst_case),
        "doors": [_row(one) for one in found.findings],
    }


def _row(one: Finding) -> Row:
    def figure(count: int | None) -> str | None:
        return None if count is None else usd(count) if one.money else str(count)

    unit = "usd" if one.money else "tokens" if one.door.name.endswith("tpm") else "requests"
    return {
        "door": one.door.name,
        "of": one.of,
        "fate": one.fate.value,
        "status": one.door.status,
        "unit": None if one.limit is None else unit,
        "limit": figure(one.limit),
        "used": figure(one.used),
        "left": figure(one.left),
        "takes": figure(one.takes),
        "period": one.period or None,
        "resets_at": iso(one.resets),
    }


class _Rehearsing(ReportView):
    parameters: ClassVar[type[serializers.Serializer[Any]]] = WishParameters

    def rehearsed(self, key: ApiKey) -> HttpResponseBase:
        asked = self.asked()
        asked.pop("format")
        try:
            found = rehearse(Wish(key_id=key.pk, **asked))
        except NotServing as exc:
            raise Conflict(str(exc)) from None
        return Response(told(as_seen_by(self.reader, key, found)))


class RehearsalView(_Rehearsing):
    """What would become of a request with this key, now. Nothing is sent, counted or held."""

    permission_classes = (MayReadSetup,)
    permission, of_teams = "proxy.view_apikey", True

    @extend_schema(parameters=[WishParameters], responses=RehearsalAnswer)
    def get(self, request: Request, key_id: int) -> HttpResponseBase:
        key = visible_keys(self.reader).filter(pk=key_id).first()
        if key is None:
            raise Http404("no such key")
        return self.rehearsed(key)


class MyRehearsalView(_Rehearsing):
    """The same for the key that asks."""

    permission_classes = (IsKnown,)

    @extend_schema(parameters=[WishParameters], responses=RehearsalAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        if not isinstance(request.auth, ApiKey):
            raise ParseError("a session has no key; ask keys/{key_id}/rehearsal/")
        return self.rehearsed(request.auth)
