"""Saved reports over REST: list, create, change and delete them, and run one by its name."""

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request

from proxy.models import ApiKey, SavedReport, Team
from proxy.models.setup.columns import check_storable
from proxy.permissions.row_permissions import visible_saved_reports
from proxy.reports.core.permissions import caller_of
from proxy.reports.core.query_parameters import Choice, ReportParameters
from proxy.reports.core.references import Reference, Row, reference_of
from proxy.reports.core.rendering import LINE_FORMATS
from proxy.reports.setup.base_serializers import ConfigSerializer
from proxy.reports.setup.fields import Linked, TypedValue
from proxy.reports.setup.viewsets import ConfigViewSet

from .reports import REPORTS, as_query, query_error


class SavedReportSerializer(ConfigSerializer):
    """A report with its parameters under a name."""

    id = serializers.CharField(source="name", read_only=True)
    report = Choice(choices=list(REPORTS))
    query = TypedValue(
        required=False,
        validators=[check_storable],
        help_text="The parameters of the report, as in its URL; several values as a list. "
        "`month` can be `this` or `last`.",
    )
    team = Linked(
        slug_field="name",
        queryset=Team.objects.all(),
        required=False,
        allow_null=True,
        help_text="The team whose report it is; null: it is yours alone.",
    )
    user = serializers.SerializerMethodField(help_text="The owner; null: the team is.")
    created_at = serializers.DateTimeField(source="created", read_only=True)

    class Meta:
        model = SavedReport
        fields = ("id", "name", "report", "query", "team", "user", "created_at")

    @extend_schema_field(Reference("user", allow_null=True))
    def get_user(self, report: SavedReport) -> Row | None:
        return reference_of(report.user)

    def complete(self, row: SavedReport, attrs: dict[str, Any]) -> None:
        """Set the owner of a report without a team, and check the parameters."""
        caller = caller_of(self.context["request"])
        owner = caller.user if isinstance(caller, ApiKey) else caller
        row.user = None if row.team else row.user or owner
        if row.user is None and row.team is None:
            raise serializers.ValidationError({"team": "a key without a user needs a team"})
        if why := query_error(row.report, row.query):
            raise serializers.ValidationError({"query": why})


class RunParameters(ReportParameters):
    """The format; further parameters of the report replace the saved ones."""


class SavedReportViewSet(ConfigViewSet):
    """Saved reports of the caller and of the caller's teams."""

    resource, of_teams = "reports", True
    refusal = "this needs a key with the scope 'reports' or 'admin'"
    queryset = SavedReport.objects.select_related("team", "user")
    serializer_class: Any = SavedReportSerializer
    lookup_field, lookup_url_kwarg = "name", "report"
    filter_columns: ClassVar = {"report": "report", "team": "team__name"}
    sort_columns: ClassVar = {"name": "name", "created_at": "created"}
    ordering = ("name",)

    def get_queryset(self) -> "QuerySet[SavedReport]":
        return visible_saved_reports(self.reader)

    @extend_schema(
        "report_run",
        parameters=[RunParameters],
        responses={
            (200, kind): OpenApiTypes.OBJECT if kind == "application/json" else OpenApiTypes.STR
            for kind in ("application/json", *(kind for _, kind in LINE_FORMATS.values()))
        },
    )
    @action(detail=True)
    def run(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Return the report, of the rows that the caller may see.

        Parameters of the request replace the saved ones; `month`, `from` or `to` replace the
        saved period.
        """
        saved, django_request = self.get_object(), request._request  # noqa: SLF001  # Django's request
        query = as_query(saved.query, django_request.GET)
        django_request.GET = query  # type: ignore[assignment]  # a mutable QueryDict
        django_request.META["QUERY_STRING"] = query.urlencode()  # the audit log records it
        view = REPORTS[saved.report]()
        view.setup(django_request)
        view.request = request
        view.check_permissions(request)
        response: HttpResponseBase = view.get(request)  # type: ignore[attr-defined]  # each report has it
        return response
