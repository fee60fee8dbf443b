"""Stop all running requests of a team, a gateway key or an upstream."""

from typing import Any

from django.http import Http404, HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.audit_log import Action, record
from proxy.counters.store import StoreUnavailable
from proxy.live.live_view_sync import live_view_sync
from proxy.live.running_requests import ADMINISTRATOR
from proxy.permissions.stop_permissions import (
    KINDS,
    MAX_NAME,
    find_stoppable,
    live_values,
    may_stop_all,
    stoppable,
)
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.json_bodies import BoundedJSON, validated_body
from proxy.reports.core.permissions import IsKeyOrStaff, caller_of
from proxy.reports.core.query_parameters import Choice
from proxy.reports.core.references import parse_key_id


class MayStopAll(IsKeyOrStaff):
    message = "stopping requests needs a key with the scope 'admin'"

    def has_permission(self, request: Request, view: Any) -> bool:
        return super().has_permission(request, view) and may_stop_all(caller_of(request))


class Stop(serializers.Serializer[Any]):
    kind = Choice(choices=list(KINDS))
    name = serializers.CharField(
        max_length=MAX_NAME, help_text="The `id` of the object; of a key also team/key."
    )


class StopIncomplete(APIException):
    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = "the requests of other processes may still run; send the request again"


class StopView(ReportView):
    """Stop all running requests of a team, a gateway key or an upstream, in every process.

    The response is a 202: other processes stop their requests within about a second. New requests
    are accepted, unless the key is revoked or the upstream is paused.
    """

    permission_classes = (MayStopAll,)
    parser_classes = (BoundedJSON,)
    http_method_names = ["options", "post"]  # noqa: RUF012  # Django's View declares a list, too

    @extend_schema(request=Stop, responses={202: Stop})
    def post(self, request: Request) -> HttpResponseBase:
        given, caller = validated_body(request, Stop), caller_of(request)
        kind, name = given["kind"], given["name"]
        pk = parse_key_id(name) if kind == "key" else 0
        by_id = stoppable(caller, kind).filter(pk=pk).first() if pk else None
        row = by_id or find_stoppable(caller, kind, name)
        if row is None:
            raise Http404(f"no {kind} of this name: {name[:60]!r}")
        record(Action.STOP, row, detail="all running requests")
        try:
            for value in live_values(row):
                live_view_sync.request_stop_all(KINDS[kind][1], value, ADMINISTRATOR)
        except StoreUnavailable:
            raise StopIncomplete from None
        return Response({"kind": kind, "name": name}, status=status.HTTP_202_ACCEPTED)
