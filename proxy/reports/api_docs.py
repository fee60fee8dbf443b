"""The index of /api/v1/, its OpenAPI document, and the page that shows the document."""

from typing import Any, Final

from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import APIRootView

from proxy.reports.core.base_views import IgnoreAcceptHeader, JsonRenderer, ReportView
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.query_parameters import JsonOnlyParameters

from .openapi import OperationSchema

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
URLS: Final = {"type": "object", "additionalProperties": {"type": "string", "format": "uri"}}


class IndexView(ReportView, APIRootView):
    """Return the URLs of all reports and lists by name."""

    permission_classes = (IsKeyOrStaff,)
    parameters, answer = JsonOnlyParameters, URLS
    schema = OperationSchema()  # the base class excludes itself from the document

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        self.validated_query()
        return super().get(request, *args, **kwargs)


class SchemaView(SpectacularJSONAPIView):
    """GET /api/v1/schema/: public, because the document contains no data of the installation."""

    content_negotiation_class = IgnoreAcceptHeader
    renderer_classes = [JsonRenderer]  # noqa: RUF012  # as the library declares it


class DocsView(SpectacularSwaggerView):
    """GET /api/v1/docs/: the document as a page. Its scripts and styles are served by the gateway.

    The script that starts the page is a file, because the policy forbids scripts in the page.
    """

    content_negotiation_class = IgnoreAcceptHeader
    url = "../schema/"
    template_name = "proxy/reports/docs.html"

    def finalize_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        final = super().finalize_response(request, response, *args, **kwargs)
        final["Content-Security-Policy"] = CSP
        final["X-Content-Type-Options"] = "nosniff"
        return final
