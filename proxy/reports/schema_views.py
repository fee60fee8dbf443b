"""The OpenAPI schema of the reports API, and an HTML page of the schema without scripts."""

import threading
from collections.abc import Callable
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.html import escape
from django.views import View
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.permissions import AllowAny
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.routers import APIRootView
from rest_framework.views import APIView

from .core.base_views import ReportView
from .core.exception_handler import exception_handler
from .core.permissions import IsKeyOrStaff

ORIGIN: Final = b"scheme-and-host-of-the-request"
"""Placeholder in the cached page, to be replaced by the origin of the request's URL."""
CSP: Final = "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'"
ABOUT: Final = {
    "title": "Messages Bridge reports",
    "version": "1",
    "description": (
        "Usage, cost and requests of this gateway, read-only. Send a gateway key with the scope "
        "reports or admin as x-api-key or as Authorization: Bearer. Configuration (keys, teams, "
        "users, models, upstreams, prices) can be changed in the session of a signed-in user."
    ),
}
URLS: Final = {"type": "object", "additionalProperties": {"type": "string", "format": "uri"}}
SECURITY: Final = {
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "session": {"type": "apiKey", "in": "cookie", "name": "sessionid"},
}


def documented_paths(endpoints: list[Any], **_: Any) -> list[Any]:
    """Return the endpoints without the second spelling of each path, which has no last slash."""
    return [one for one in endpoints if not one[0].startswith("/api/") or one[0].endswith("/")]


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # the library has no types
    """Describe KeyAuthentication, for drf-spectacular, as an OpenAPI security scheme."""

    target_class = "proxy.reports.core.permissions.KeyAuthentication"
    name = "key"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return SECURITY["key"]


def schema() -> dict[str, Any]:
    """Return the OpenAPI 3 document of /api/v1/ and /v1/organizations/.

    It is the same for every installation.
    """
    generator = SchemaGenerator(urlconf="proxy.urls")  # type: ignore[no-untyped-call]  # the library has no types
    result: dict[str, Any] = generator.get_schema(public=True)  # type: ignore[no-untyped-call]  # as above
    result["info"] = ABOUT
    result.setdefault("components", {})["securitySchemes"] = SECURITY
    result["security"] = [{name: []} for name in SECURITY]
    for operations in result["paths"].values():
        for method, operation in operations.items():
            operation.pop("security", None)
            operation["responses"] |= dict.fromkeys(ERROR_CODES, ERROR_REFERENCE)
            if method == "get":
                operation["responses"]["304"] = {"description": "The report has not changed."}
            if "csv" in _formats(operation):
                text = {"schema": {"type": "string"}}
                content = operation["responses"]["200"]["content"]
                content |= {"text/csv": text, "application/x-ndjson": text}
    result["components"]["responses"] = {"Error": ERROR}
    return result


def _formats(operation: dict[str, Any]) -> list[str]:
    for parameter in operation.get("parameters", []):
        if parameter["name"] == "format":
            formats: list[str] = parameter["schema"].get("enum", [])
            return formats
    return []


ERROR_CODES: Final = ("400", "401", "403", "404", "405", "409", "429")
ERROR_REFERENCE: Final = {"$ref": "#/components/responses/Error"}
ERROR: Final = {
    "description": "Anthropic's error body.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["type", "error", "request_id"],
                "properties": {
                    "type": {"type": "string", "enum": ["error"]},
                    "error": {
                        "type": "object",
                        "required": ["type", "message"],
                        "properties": {
                            "type": {"type": "string"},
                            "message": {"type": "string"},
                        },
                    },
                    "request_id": {"type": "string"},
                },
            }
        }
    },
}


@extend_schema_view(get=extend_schema(responses={200: URLS}))
class IndexView(ReportView, APIRootView):
    """Return the URLs of all reports and lists by name."""

    permission_classes = (IsKeyOrStaff,)


class SchemaView(APIView):
    """GET /api/v1/schema/: public, because the schema contains no data of the installation."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    renderer_classes = (JSONRenderer,)
    schema = None

    def get_exception_handler(self) -> Any:
        return exception_handler

    def get(self, request: Request) -> HttpResponse:
        text = _cached("schema", lambda: JSONRenderer().render(schema()))
        return HttpResponse(text, content_type="application/json")


class DocsView(View):
    """GET /api/v1/docs/: the schema as an HTML page."""

    http_method_names = ["get", "head"]  # noqa: RUF012  # as Django declares it

    def get(self, request: HttpRequest) -> HttpResponse:
        origin = escape(f"{request.scheme}://{request.get_host()}").encode()
        page = HttpResponse(_cached("page", _page).replace(ORIGIN, origin))
        page["Content-Security-Policy"] = CSP
        page["X-Content-Type-Options"] = "nosniff"
        return page


def _page() -> bytes:
    return render_to_string(
        "proxy/reports/docs.html",
        {"about": ABOUT, "routes": routes(), "origin": ORIGIN.decode()},
    ).encode()


_lock: Final = threading.Lock()
_ready: Final[dict[str, bytes]] = {}


def _cached(name: str, build: Callable[[], bytes]) -> bytes:
    """Return the cached result of ``build``, which takes 90 ms and is not thread-safe."""
    with _lock:
        if name not in _ready:
            _ready[name] = build()
        return _ready[name]


def routes() -> list[dict[str, Any]]:
    """Return the operations of the schema as values for the template of the HTML page."""
    document = schema()
    components = document["components"].get("schemas", {})
    return [
        {
            "path": route,
            "method": method.upper(),
            "about": operation.get("description", ""),
            "parameters": operation.get("parameters", []),
            "columns": _columns(operation, components),
        }
        for route, operations in document["paths"].items()
        for method, operation in operations.items()
    ]


def _columns(operation: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of an operation's response and the fields of the rows in it."""
    responses = operation["responses"]
    success: dict[str, Any] = next(
        (responses[code] for code in ("200", "201", "202") if code in responses), {}
    )
    body = success.get("content", {})
    fields = _fields(body.get("application/json", {}).get("schema", {}), components)
    result = []
    for name, field in fields.items():
        result.append({"name": name, **_describe(field)})
        for inner, field_schema in _fields(field.get("items", {}), components).items():
            result.append({"name": f"{name}[].{inner}", **_describe(field_schema)})
    return result


def _fields(node: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    name = node.get("$ref", "").rpartition("/")[2]
    properties: dict[str, Any] = components.get(name, node).get("properties", {})
    return properties


def _describe(field: dict[str, Any]) -> dict[str, Any]:
    kind = field.get("type", "object")
    return {
        "kind": f"{kind} or null" if field.get("nullable") else kind,
        "about": field.get("description", ""),
    }
