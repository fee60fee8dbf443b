"""The API under /api/v1/exports/: create an export, read its state, download its file."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from django.db.models import QuerySet
from django.http import Http404, HttpResponseBase
from django.utils.timezone import now
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ParseError, PermissionDenied, Throttled
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.audit_log import Action, record
from proxy.ids import new_ulid
from proxy.ledger.archive.reading import archived_months
from proxy.models import ApiKey, Export, ExportState
from proxy.reports.core.base_views import ReportView, name_archived
from proxy.reports.core.exception_handler import Conflict
from proxy.reports.core.json_bodies import BoundedJSON
from proxy.reports.core.permissions import IsKeyOrStaff, MayReport
from proxy.reports.core.query_parameters import FORMER_NAMES, Choice, JsonOnlyParameters
from proxy.reports.core.rendering import LINE_FORMATS, download_response

from .jobs import REPORTS, file_path, reader_as_json, runner, validate_query

MAX_UNFINISHED: Final = 10  # exports of one caller that are waiting or running
MAX_LISTED: Final = 100
CHUNK_BYTES: Final = 256 * 1024


class ExportRequest(serializers.Serializer[Any]):
    """The body of a request for an export."""

    report = Choice(choices=list(REPORTS))
    format = Choice(choices=list(LINE_FORMATS))
    query = serializers.DictField(
        required=False,
        help_text="The parameters of the report, as in its URL. Give several values as a list.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if unknown := set(self.initial_data) - set(self.fields):
            raise serializers.ValidationError(
                {min(unknown)[:60]: f"unknown; known here: {', '.join(self.fields)}"}
            )
        query = _normalize_values(attrs.get("query") or {})
        validated = validate_query(attrs["report"], query, attrs["format"])
        time_range = validated["time_range"]  # store absolute times, because the export runs later
        bounds = {"from": time_range.start.isoformat(), "to": time_range.end.isoformat()}
        query.pop("month", None)
        return {**attrs, "query": {**query, **bounds}}


def _normalize_values(query: dict[str, Any]) -> dict[str, Any]:
    """Return the parameter values as text, as in a URL; repeatable ones as a list of text."""
    repeatable = {
        name
        for report in REPORTS.values()
        for name, field in report.parameters().fields.items()
        if isinstance(field, serializers.ListField)
    }
    values_by_name: dict[str, Any] = {}
    for name, value in query.items():
        values = [_as_text(name, one) for one in (value if isinstance(value, list) else [value])]
        bare_name = name.removesuffix("[]")
        bare_name = FORMER_NAMES.get(bare_name, bare_name)
        if bare_name not in repeatable and len(values) != 1:
            raise serializers.ValidationError({f"query.{name[:60]}": "expected one value"})
        values_by_name[bare_name] = values if bare_name in repeatable else values[0]
    return values_by_name


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise serializers.ValidationError({f"query.{name[:60]}": "expected text, a number or a list"})


class ExportRow(serializers.Serializer[Any]):
    id = serializers.CharField()
    report = serializers.CharField()
    format = serializers.CharField()
    query = serializers.DictField(help_text="The validated parameters, with absolute from and to.")
    state = serializers.ChoiceField(choices=ExportState.choices)
    created_at = serializers.DateTimeField(source="created")
    finished_at = serializers.DateTimeField(source="finished", allow_null=True)
    expires_at = serializers.DateTimeField(
        source="expires", allow_null=True, help_text="When its file is deleted."
    )
    bytes = serializers.IntegerField(help_text="Size of the file so far.")
    error = serializers.SerializerMethodField()
    download = serializers.SerializerMethodField(help_text="The path of its file, once done.")

    def get_error(self, job: Export) -> str | None:
        return job.error or None

    def get_download(self, job: Export) -> str | None:
        is_done = job.state == ExportState.DONE
        return f"/api/v1/exports/{job.pk}/download/" if is_done else None


class ExportPage(serializers.Serializer[Any]):
    data = ExportRow(many=True)  # type: ignore[assignment]  # DRF removes fields from the class


class ExportBase(ReportView):
    """Base of the export views. Only the key or the user that created an export can see it."""

    permission_classes = (IsKeyOrStaff,)
    parameters = JsonOnlyParameters

    def own_exports(self) -> QuerySet[Export]:
        auth = self.request.auth
        if isinstance(auth, ApiKey):
            return Export.objects.filter(key=auth)
        return Export.objects.filter(user=self.request.user.pk)

    def get_export(self, export_id: str) -> Export:
        job = self.own_exports().filter(pk=export_id).first()
        if job is None:
            raise Http404(f"no export {export_id[:60]!r}")
        return job


class ExportsView(ExportBase):
    """List the exports of the caller, newest first, or create one."""

    answer = ExportPage
    http_method_names = ["get", "head", "post", "options"]  # noqa: RUF012  # Django's View declares a list, too
    parser_classes = (BoundedJSON,)

    def get(self, request: Request) -> HttpResponseBase:
        self.validated_query()
        return Response(ExportPage({"data": self.own_exports()[:MAX_LISTED]}).data)

    @extend_schema(request=ExportRequest, responses={202: ExportRow})
    def post(self, request: Request) -> HttpResponseBase:
        """Create an export of any size. The answer is 202 with the path of its state."""
        if not isinstance(request.data, dict):
            raise ParseError("the body is not a JSON object")
        body = ExportRequest(data=request.data)
        body.is_valid(raise_exception=True)
        self._check_rights(body.validated_data["report"])
        auth = request.auth
        job = Export.objects.create(
            pk=f"export_{new_ulid()}",
            created=now(),
            key=auth if isinstance(auth, ApiKey) else None,
            user_id=None if isinstance(auth, ApiKey) else request.user.pk,
            reader=reader_as_json(self.reader),
            **body.validated_data,
        )
        record(Action.EXPORT, job, detail=f"requested an export of {job.report} as {job.format}")
        runner.wake()
        response = Response(ExportRow(job).data, status=status.HTTP_202_ACCEPTED)
        response["Location"] = f"/api/v1/exports/{job.pk}/"
        bounds = (datetime.fromisoformat(job.query[name]) for name in ("from", "to"))
        return name_archived(response, archived_months(*bounds))

    def _check_rights(self, report: str) -> None:
        if report == "usage" and not self.reader.may_report:
            raise PermissionDenied(MayReport.message)
        waiting = (
            self.own_exports().filter(state__in=(ExportState.WAITING, ExportState.RUNNING)).count()
        )
        if waiting >= MAX_UNFINISHED:
            raise Throttled(detail=f"{waiting} of your exports are not finished yet", wait=10)


class ExportView(ExportBase):
    """Return the state of one export."""

    answer = ExportRow

    def get(self, request: Request, export_id: str) -> HttpResponseBase:
        self.validated_query()
        job = self.get_export(export_id)
        if job.state in {ExportState.WAITING, ExportState.RUNNING}:
            runner.wake()  # if the process that ran the export has died, this process runs it
        return Response(ExportRow(job).data)


class ExportFileView(ExportBase):
    """Download the file of a finished export."""

    @extend_schema(
        responses={(200, kind): OpenApiTypes.STR for _, kind in LINE_FORMATS.values()},
    )
    def get(self, request: Request, export_id: str) -> HttpResponseBase:
        self.validated_query()
        job = self.get_export(export_id)
        if job.state in {ExportState.WAITING, ExportState.RUNNING}:
            raise Conflict(f"{job.pk} is {job.state}; read its state until it is done")
        if job.state == ExportState.DONE and job.reader != reader_as_json(self.reader):
            raise Http404(
                "your permissions have changed since the export was created; create a new one"
            )
        path = file_path(job)
        if job.state != ExportState.DONE or not path.is_file():
            raise Http404(f"{job.pk} has no file: {job.error or job.state}")
        record(Action.EXPORT, job, detail=f"downloaded the export of {job.report}")
        response = download_response(request._request, _read(path), job.format, job.pk)  # noqa: SLF001  # Django's request
        response["Content-Length"] = str(path.stat().st_size)
        return response


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
