"""The admission dry run: whether the gateway would admit a request, and what each limit leaves."""

from typing import Any, ClassVar, Final

from django.http import Http404, HttpResponseBase
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.admission_checks import (
    CHECKS,
    AdmissionDryRun,
    CheckFinding,
    CheckResult,
    HypotheticalRequest,
    NotServing,
    run_admission_dry_run,
)
from proxy.models import ApiKey
from proxy.money import usd
from proxy.permissions.row_permissions import as_seen_by, visible_keys
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.exception_handler import Conflict
from proxy.reports.core.permissions import IsKeyOrStaff, ReadsConfig, config_reader_of
from proxy.reports.core.query_parameters import JsonOnlyParameters, Number
from proxy.reports.core.references import parse_key_id
from proxy.reports.core.rendering import Row
from proxy.times import rfc3339

DEPRECATED_SINCE: Final = 1_796_083_200  # 2026-12-01, in Unix seconds


class DryRunParameters(JsonOnlyParameters):
    model = serializers.CharField(max_length=200, help_text="The model name in the request.")
    input_tokens = Number(
        min_value=0, max_value=10**9, default=1000, help_text="Tokens of the prompt."
    )
    max_tokens = Number(
        min_value=1, max_value=10**9, default=1000, help_text="The `max_tokens` of the request."
    )
    ip = serializers.IPAddressField(
        default="", help_text="Client address. Without it, address rules have the result `unknown`."
    )
    client = serializers.CharField(
        max_length=200,
        default="",
        help_text="Name and version of the client, such as `claude-cli 2.1.0`, for the conditions "
        "of targets. Targets with conditions on headers take no dry run.",
    )


class CheckRow(serializers.Serializer[Any]):
    door = serializers.ChoiceField(choices=[check.name for check in CHECKS], help_text="The check.")
    of = serializers.CharField(
        help_text="Owner of the limit: key platform/ci, team platform, user ada."
    )
    fate = serializers.ChoiceField(
        choices=[result.value for result in CheckResult],
        help_text="Result of the check; `warns`: a soft budget is exhausted and only warns.",
    )
    status = serializers.IntegerField(
        help_text="HTTP status of the response if this check refuses."
    )
    unit = serializers.CharField(allow_null=True, help_text="requests, tokens or usd")
    limit = serializers.CharField(allow_null=True)
    used = serializers.CharField(
        allow_null=True, help_text="Used so far, reservations of running requests included."
    )
    left = serializers.CharField(allow_null=True)
    takes = serializers.CharField(allow_null=True, help_text="Amount that this request would use.")
    period = serializers.CharField(
        allow_null=True, help_text="Period of a budget: day, week or month."
    )
    resets_at = serializers.CharField(
        allow_null=True,
        help_text="When a token bucket is full again, or the period of a budget ends.",
    )


class DryRunResult(serializers.Serializer[Any]):
    admitted = serializers.BooleanField()
    refused_by = serializers.CharField(allow_null=True, help_text="The first check that refuses.")
    route = serializers.CharField(allow_null=True, help_text="The route as configured: claude-*")
    targets = serializers.ListField(child=serializers.CharField())
    worst_case_usd = serializers.CharField(allow_null=True, help_text="null: the price is unknown")
    doors = CheckRow(many=True, help_text="The checks in the order in which they run.")


def result_row(result: AdmissionDryRun) -> Row:
    refusal = result.refused_by
    return {
        "admitted": refusal is None,
        "refused_by": refusal.check.name if refusal else None,
        "route": result.route or None,
        "targets": list(result.targets),
        "worst_case_usd": None if result.worst_case is None else usd(result.worst_case),
        "doors": [_row(finding) for finding in result.findings],
    }


def _row(finding: CheckFinding) -> Row:
    def amount(count: int | None) -> str | None:
        return None if count is None else usd(count) if finding.money else str(count)

    unit = (
        "usd" if finding.money else "tokens" if finding.check.name.endswith("tpm") else "requests"
    )
    return {
        "door": finding.check.name,
        "of": finding.subject,
        "fate": finding.result.value,
        "status": finding.check.status,
        "unit": None if finding.limit is None else unit,
        "limit": amount(finding.limit),
        "used": amount(finding.used),
        "left": amount(finding.left),
        "takes": amount(finding.takes),
        "period": finding.period or None,
        "resets_at": rfc3339(finding.resets),
    }


class DryRunBase(ReportView):
    """Base of the dry runs."""

    parameters: ClassVar[type[serializers.Serializer[Any]]] = DryRunParameters

    def dry_run(self, key: ApiKey) -> HttpResponseBase:
        query = self.validated_query()
        query.pop("format")
        try:
            result = run_admission_dry_run(HypotheticalRequest(key_id=key.pk, **query))
        except NotServing as exc:
            raise Conflict(str(exc)) from None
        return Response(result_row(as_seen_by(config_reader_of(self.request), key, result)))


class KeyDryRunView(DryRunBase):
    """Return whether a request with this key would be admitted now.

    Nothing is sent, counted or reserved.
    """

    permission_classes = (ReadsConfig,)
    queryset, of_teams = ApiKey.objects.all(), True
    refusal = "this needs a key with the scope 'admin' or 'keys:write'"

    @extend_schema("dry_run", responses=DryRunResult)
    def get(self, request: Request, key_id: str) -> HttpResponseBase:
        key = visible_keys(config_reader_of(request)).filter(pk=parse_key_id(key_id)).first()
        if key is None:
            raise Http404("no such key")
        return self.dry_run(key)


class MyDryRunView(DryRunBase):
    """Return whether a request with the caller's own key would be admitted now."""

    permission_classes = (IsKeyOrStaff,)

    @extend_schema("my_dry_run", responses=DryRunResult)
    def get(self, request: Request) -> HttpResponseBase:
        if not isinstance(request.auth, ApiKey):
            raise ParseError("a session has no key; use keys/{key_id}/dry-run/")
        return self.dry_run(request.auth)


class FormerPath(ReportView):
    """A deprecated path: the header ``Deprecation`` of RFC 9745, and a link to the new path."""

    def finalize_response(  # type: ignore[override]  # as its base
        self, request: Request, response: Any, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        response["Deprecation"] = f"@{DEPRECATED_SINCE}"
        new_path = request.get_full_path().replace("/rehearsal", "/dry-run", 1)  # encoded
        response["Link"] = f'<{new_path}>; rel="successor-version"'
        return super().finalize_response(request, response, *args, **kwargs)


@extend_schema_view(get=extend_schema("rehearsal", deprecated=True))
class FormerKeyDryRunView(FormerPath, KeyDryRunView):
    """The former path of the dry run of a key."""


@extend_schema_view(get=extend_schema("my_rehearsal", deprecated=True))
class FormerMyDryRunView(FormerPath, MyDryRunView):
    """The former path of the dry run of the caller's own key."""
