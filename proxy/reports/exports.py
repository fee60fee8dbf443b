"""/api/v1/exports/: asked for now, made in the background, fetched later as one file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from django.db.models import QuerySet
from django.http import Http404, HttpResponseBase
from django.utils.timezone import now
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import APIException, ParseError, PermissionDenied, Throttled
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.audit_trail import note, note_of_key
from proxy.models import ApiKey, Export, ExportState
from proxy.ulids import new_ulid

from .access import IsKnown, MayReport
from .answers import LINES, Row, download
from .base import ReportView
from .export_jobs import REPORTS, checked, frozen, path_of, runner
from .json_bodies import BoundedJSON
from .parameters import Choice, OnlyJson

MOST_WAITING: Final = 10  # of one caller
SHOWN: Final = 100
CHUNK: Final = 256 * 1024


class ExportRequest(serializers.Serializer[Any]):
    """What to export."""

    report = Choice(choices=list(REPORTS))
    format = Choice(choices=list(LINES))
    query = serializers.DictField(
        required=False, help_text="The report's own parameters, as in its URL; lists for several."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if unknown := set(self.initial_data) - set(self.fields):
            raise serializers.ValidationError(
                {min(unknown)[:60]: f"unknown; known here: {', '.join(self.fields)}"}
            )
        query = _listed(attrs.get("query") or {})
        asked = checked(attrs["report"], query, attrs["format"])
        span = asked["span"]  # "until now" would be another stretch when it is made
        spelled = {"from": span.start.isoformat(), "to": span.end.isoformat()}
        return {**attrs, "query": {**query, **spelled}}


def _listed(query: dict[str, Any]) -> dict[str, Any]:
    """Values as a URL would have them: text; what may be repeated, as a list of text."""
    several = {
        name
        for parameters, _ in REPORTS.values()
        for name, field in parameters().fields.items()
        if isinstance(field, serializers.ListField)
    }
    found: dict[str, Any] = {}
    for name, value in query.items():
        values = [_text(name, one) for one in (value if isinstance(value, list) else [value])]
        plain = name.removesuffix("[]")
        if plain not in several and len(values) != 1:
            raise serializers.ValidationError({f"query.{name[:60]}": "expected one value"})
        found[plain] = values if plain in several else values[0]
    return found


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise serializers.ValidationError({f"query.{name[:60]}": "expected text, a number or a list"})


class ExportRow(serializers.Serializer[Any]):
    id = serializers.CharField()
    report = serializers.CharField()
    format = serializers.CharField()
    query = serializers.DictField(help_text="As it was checked, the stretch of time spelled out.")
    state = serializers.ChoiceField(choices=ExportState.choices)
    created_at = serializers.CharField()
    finished_at = serializers.CharField(allow_null=True)
    expires_at = serializers.CharField(allow_null=True, help_text="When its file is deleted.")
    bytes = serializers.IntegerField(help_text="Of the file, so far.")
    error = serializers.CharField(allow_null=True)
    download = serializers.CharField(allow_null=True, help_text="The path of its file, once done.")


class ExportPage(serializers.Serializer[Any]):
    data = ExportRow(many=True)  # type: ignore[assignment]  # DRF takes fields off the class


def export_row(job: Export) -> Row:
    done = job.state == ExportState.DONE
    return {
        "id": job.pk,
        "report": job.report,
        "format": job.format,
        "query": job.query,
        "state": job.state,
        "created_at": job.created.isoformat().replace("+00:00", "Z"),
        "finished_at": job.finished.isoformat().replace("+00:00", "Z") if job.finished else None,
        "expires_at": job.expires.isoformat().replace("+00:00", "Z") if job.expires else None,
        "bytes": job.bytes,
        "error": job.error or None,
        "download": f"/api/v1/exports/{job.pk}/download/" if done else None,
    }


class Conflict(APIException):
    status_code = status.HTTP_409_CONFLICT
    default_detail = "not now"


class ExportBase(ReportView):
    """An export belongs to the key or the user who asked for it; nobody else knows of it."""

    permission_classes = (IsKnown,)
    parameters = OnlyJson

    def own(self) -> QuerySet[Export]:
        auth = self.request.auth
        if isinstance(auth, ApiKey):
            return Export.objects.filter(key=auth)
        return Export.objects.filter(user=self.request.user.pk)

    def find(self, export_id: str) -> Export:
        job = self.own().filter(pk=export_id).first()
        if job is None:
            raise Http404(f"no export {export_id[:60]!r}")
        return job

    def noted(self, job: Export, message: str) -> None:
        auth = self.request.auth
        if isinstance(auth, ApiKey):
            note_of_key(auth, job, message)
        else:
            note(self.request.user, job, message)


class ExportsView(ExportBase):
    """Exports of the caller, newest first; POST asks for one more."""

    http_method_names = ["get", "head", "post", "options"]  # noqa: RUF012  # Django's own spelling
    parser_classes = (BoundedJSON,)

    @extend_schema(parameters=[OnlyJson], responses=ExportPage)
    def get(self, request: Request) -> HttpResponseBase:
        self.asked()
        return Response({"data": [export_row(job) for job in self.own()[:SHOWN]]})

    @extend_schema(request=ExportRequest, responses={202: ExportRow})
    def post(self, request: Request) -> HttpResponseBase:
        """Ask for an export of any size: 202, and the path where its state is told."""
        if not isinstance(request.data, dict):
            raise ParseError("the body is no JSON object")
        asked = ExportRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        self._check_rights(asked.validated_data["report"])
        auth = request.auth
        job = Export.objects.create(
            pk=f"export_{new_ulid()}",
            created=now(),
            key=auth if isinstance(auth, ApiKey) else None,
            user_id=None if isinstance(auth, ApiKey) else request.user.pk,
            reader=frozen(self.reader),
            **asked.validated_data,
        )
        self.noted(job, f"Asked for an export of {job.report} as {job.format}.")
        runner.wake()
        answer = Response(export_row(job), status=status.HTTP_202_ACCEPTED)
        answer["Location"] = f"/api/v1/exports/{job.pk}/"
        return answer

    def _check_rights(self, report: str) -> None:
        if report == "usage" and not self.reader.may_report:
            raise PermissionDenied(MayReport.message)
        waiting = self.own().filter(state__in=(ExportState.WAITING, ExportState.RUNNING)).count()
        if waiting >= MOST_WAITING:
            raise Throttled(detail=f"{waiting} exports of yours are still being made", wait=10)


class ExportView(ExportBase):
    """The state of one export."""

    @extend_schema(parameters=[OnlyJson], responses=ExportRow)
    def get(self, request: Request, export_id: str) -> HttpResponseBase:
        self.asked()
        job = self.find(export_id)
        if job.state in {ExportState.WAITING, ExportState.RUNNING}:
            runner.wake()  # its process may have died
        return Response(export_row(job))


class ExportFileView(ExportBase):
    """The file of an export that is done."""

    @extend_schema(
        parameters=[OnlyJson],
        responses={(200, kind): OpenApiTypes.STR for _, kind in LINES.values()},
    )
    def get(self, request: Request, export_id: str) -> HttpResponseBase:
        self.asked()
        job = self.find(export_id)
        if job.state in {ExportState.WAITING, ExportState.RUNNING}:
            raise Conflict(f"{job.pk} is {job.state}; ask for its state until it is done")
        if job.state == ExportState.DONE and job.reader != frozen(self.reader):
            raise Http404("your rights are others than when you asked for it; ask anew")
        path = path_of(job)
        if job.state != ExportState.DONE or not path.is_file():
            raise Http404(f"{job.pk} has no file here: {job.error or job.state}")
        self.noted(job, f"Downloaded the export of {job.report}.")
        answer = download(request._request, _read(path), job.format, job.pk)  # noqa: SLF001  # as in base.py
        answer["Content-Length"] = str(path.stat().st_size)
        return answer


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
