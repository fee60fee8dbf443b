"""The base class of all report views: permissions, parameters, rendering and errors."""

import hashlib
import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import msgspec
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.http import parse_etags
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.permissions import BasePermission
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from proxy.ledger.archive.reading import archived_months
from proxy.permissions.row_permissions import Reader

from .exception_handler import new_request_id
from .permissions import AUTHENTICATION, MayReport, ReaderThrottle, reader_of
from .query_parameters import ReportParameters, normalize_query
from .rendering import Row, stream_rows

MAX_CONCURRENT_REPORTS: Final = 3
"""Reports that one worker process computes concurrently. Their threads compete with the responses
to clients for the GIL: with thirty concurrent reports, a stream took three times as long."""

ARCHIVED: Final = "bridge-archived-months"
"""Response header: the months of the time range whose requests are archived, such as ``2026-06``.
What a response computes from single requests lacks them; sums of whole days have them."""

_slots: Final = threading.BoundedSemaphore(MAX_CONCURRENT_REPORTS)


def encode_json(body: Any) -> bytes:
    """Encode JSON as UTF-8; for a large report, ten times faster than the standard library."""
    return msgspec.json.encode(body, enc_hook=_to_builtin)


def _to_builtin(value: Any) -> Any:
    """Convert DRF's subclasses of dict, list and str, which msgspec rejects, to the builtins."""
    if isinstance(value, dict):
        return dict(value)
    return list(value) if isinstance(value, list) else str(value)


class JsonRenderer(BaseRenderer):
    media_type = "application/json"
    format = "json"
    charset = None  # the content type has no charset parameter: JSON is always UTF-8

    def render(self, data: Any, *_: Any, **__: Any) -> bytes:
        return b"" if data is None else encode_json(data)


class IgnoreAcceptHeader(BaseContentNegotiation):
    """Ignore the ``Accept`` header: a client that sends any value or no header gets JSON."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: Any = None
    ) -> tuple[BaseRenderer, str]:
        first = next(iter(renderers))
        return first, str(first.media_type)


class ReportView(APIView):
    """The base of report views: read-only, default deny, errors in Anthropic's format."""

    authentication_classes = AUTHENTICATION
    permission_classes: tuple[type[BasePermission], ...] = (MayReport,)
    throttle_classes = (ReaderThrottle,)
    renderer_classes = (JsonRenderer,)
    content_negotiation_class = IgnoreAcceptHeader
    http_method_names = ["get", "head", "options"]  # noqa: RUF012  # Django's View declares a list, too
    parameters: ClassVar[type[Serializer[Any]]] = ReportParameters
    answer: ClassVar[Any] = None
    """The serializer or the schema of the response to GET, unless ``extend_schema`` sets it."""
    reads_requests: ClassVar[bool] = True
    """Whether the report is about requests, which may be archived."""
    archived: Sequence[str] = ()
    """The archived months of the request's time range, which ``validated_query`` sets."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with _slots:  # this may block: each request runs in its own thread
            return super().dispatch(request, *args, **kwargs)

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        self.request_id = new_request_id()
        return super().initialize_request(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if "\x00" in request.path:  # PostgreSQL raises an error on a NUL
            raise Http404("a name in the path contains a null character")

    def finalize_response(  # type: ignore[override]  # downloads are not DRF responses
        self, request: Request, response: Any, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        final = super().finalize_response(request, response, *args, **kwargs)
        if final.status_code == 200:
            name_archived(final, self.archived)
        final["request-id"] = self.request_id
        final["X-Content-Type-Options"] = "nosniff"
        final["Cache-Control"] = "private, no-cache"
        if isinstance(final, Response) and final.status_code == 200:
            final.add_post_render_callback(lambda rendered: _add_etag(request, rendered))
        return final

    @property
    def reader(self) -> Reader:
        return reader_of(self.request)

    def validated_query(
        self, parameters_class: "type[Serializer[Any]] | None" = None
    ) -> dict[str, Any]:
        """Return the validated query parameters. Raise ValidationError, which becomes a 400."""
        read = parameters_class or self.parameters
        parameters = read(data=normalize_query(self.request.query_params))
        parameters.is_valid(raise_exception=True)
        query = dict(parameters.validated_data)
        edges = getattr(query.get("time_range") or query.get("window"), "edges", ())
        if edges and self.reads_requests:
            self.archived = archived_months(edges[0], edges[-1])
        return query

    def rows_response(
        self, query: dict[str, Any], name: str, rows: Iterable[Row], columns: Sequence[str]
    ) -> HttpResponseBase:
        """Return all rows as a CSV or NDJSON download."""
        request = self.request._request  # noqa: SLF001  # the only access to Django's request
        return stream_rows(request, rows, query["format"], name, columns)


def name_archived(response: HttpResponseBase, months: Sequence[str]) -> HttpResponseBase:
    """Set the header ``ARCHIVED``, unless there is no month."""
    if months:
        response[ARCHIVED] = ", ".join(months)
    return response


def _add_etag(request: Request, response: Response) -> None:
    """Set the ETag; change the response to a 304 if If-None-Match has the same ETag.

    The ETag does not depend on ``data_refreshed_at``, which changes even if no figure changes.
    """
    figures = response.data
    if isinstance(figures, dict) and "data_refreshed_at" in figures:
        figures = {name: value for name, value in figures.items() if name != "data_refreshed_at"}
        encoded = encode_json(figures)
    else:
        encoded = bytes(response.content)
    etag = f'W/"{hashlib.blake2b(encoded, digest_size=16).hexdigest()}"'
    response["ETag"] = etag
    client_etags = parse_etags(request.headers.get("if-none-match", ""))
    if "*" in client_etags or etag in client_etags or etag.removeprefix("W/") in client_etags:
        response.status_code = 304
        response.content = b""
