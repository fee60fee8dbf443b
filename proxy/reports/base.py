"""What all report views share: who may ask, how they are asked, how they answer."""

import hashlib
import re
import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import msgspec
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.http import parse_etags
from drf_spectacular.openapi import AutoSchema
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.permissions import BasePermission
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from proxy.visibility import Reader

from .access import AUTHENTICATION, MayReport, ReaderThrottle, reader_of
from .answers import Row, streamed
from .faults import error_answer, new_request_id
from .parameters import ReportParameters, plain_query

AT_ONCE: Final = 3
"""Reports that a worker computes at a time. They share the interpreter with its streams, which get
it less often the more threads want it; with thirty at once a stream took three times as long."""

_turns: Final = threading.BoundedSemaphore(AT_ONCE)


def packed_json(body: Any) -> bytes:
    """JSON in UTF-8: a wide report is packed ten times faster than by the standard library."""
    return msgspec.json.encode(body, enc_hook=_plain)


def _plain(value: Any) -> Any:
    """DRF's subclasses of what JSON knows."""
    if isinstance(value, dict):
        return dict(value)
    return list(value) if isinstance(value, list) else str(value)


class JsonRenderer(BaseRenderer):
    media_type = "application/json"
    format = "json"
    charset = None  # JSON has but one

    def render(self, data: Any, *_: Any, **__: Any) -> bytes:
        return b"" if data is None else packed_json(data)


class AlwaysJson(BaseContentNegotiation):
    """``Accept`` is not asked: a collector that sends ``*/*`` or nothing gets JSON as well."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: Any = None
    ) -> tuple[BaseRenderer, str]:
        first = next(iter(renderers))
        return first, str(first.media_type)


class NamedAfterView(AutoSchema):
    """Each operation has a name of its own, which made clients show: ``requests``, ``request``.

    drf-spectacular would call a list and one of its rows alike, and number them.
    """

    def get_operation_id(self) -> str:
        view = type(self.view).__name__.removesuffix("View")
        words = [word.lower() for word in re.findall("[A-Z][a-z]*", view)]
        verb = [] if self.method == "GET" else [self.method.lower()]
        layer = ["organizations"] if self.path.startswith("/v1/organizations/") else []
        return "_".join([*layer, *words, *verb])


class ReportView(APIView):
    """Read-only, denied unless allowed, errors in Anthropic's shape."""

    authentication_classes = AUTHENTICATION
    permission_classes: tuple[type[BasePermission], ...] = (MayReport,)
    throttle_classes = (ReaderThrottle,)
    renderer_classes = (JsonRenderer,)
    content_negotiation_class = AlwaysJson
    http_method_names = ["get", "head", "options"]  # noqa: RUF012  # Django's own spelling
    schema = NamedAfterView()
    parameters: ClassVar[type[Serializer[Any]]] = ReportParameters

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with _turns:  # each request has a thread of its own, which may wait
            return super().dispatch(request, *args, **kwargs)

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        self.request_id = new_request_id()
        return super().initialize_request(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if "\x00" in request.path:  # no row is called so, and PostgreSQL raises where it is asked
            raise Http404("a name in the path holds a null character")

    def get_exception_handler(self) -> Any:
        return error_answer

    def finalize_response(  # type: ignore[override]  # downloads are no DRF responses
        self, request: Request, response: Any, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        answer = super().finalize_response(request, response, *args, **kwargs)
        answer["request-id"] = self.request_id
        answer["X-Content-Type-Options"] = "nosniff"
        answer["Cache-Control"] = "private, no-cache"
        if isinstance(answer, Response) and answer.status_code == 200:
            answer.add_post_render_callback(lambda done: _not_modified(request, done))
        return answer

    @property
    def reader(self) -> Reader:
        return reader_of(self.request)

    def asked(self) -> dict[str, Any]:
        """The checked parameters. Raises ValidationError, which becomes a 400."""
        parameters = self.parameters(data=plain_query(self.request.query_params))
        parameters.is_valid(raise_exception=True)
        return dict(parameters.validated_data)

    def rows_answer(
        self, asked: dict[str, Any], name: str, rows: Iterable[Row], columns: Sequence[str] = ()
    ) -> HttpResponseBase:
        """All rows as CSV or NDJSON."""
        request = self.request._request  # noqa: SLF001  # DRF offers Django's request no other way
        return streamed(request, rows, asked["format"], name, columns)


def _not_modified(request: Request, answer: Response) -> None:
    """304 when the caller has these figures already; a newer watermark alone is no news."""
    figures = answer.data
    if isinstance(figures, dict) and "data_refreshed_at" in figures:
        figures = {name: value for name, value in figures.items() if name != "data_refreshed_at"}
        packed = packed_json(figures)
    else:
        packed = bytes(answer.content)
    etag = f'W/"{hashlib.blake2b(packed, digest_size=16).hexdigest()}"'
    answer["ETag"] = etag
    known = parse_etags(request.headers.get("if-none-match", ""))
    if "*" in known or etag in known or etag.removeprefix("W/") in known:
        answer.status_code = 304
        answer.content = b""
