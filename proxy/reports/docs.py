"""The schema of our reports and a page to read it: no script, nothing from elsewhere."""

import threading
from collections.abc import Callable
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import path
from django.utils.html import escape
from django.views import View
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from rest_framework.permissions import AllowAny
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from .catalogue import VIEWS
from .faults import error_answer
from .organizations.urls import VIEWS as WIRE_VIEWS

ORIGIN: Final = b"scheme-and-host-of-the-request"
"""Where the page names the address that it was read at."""
CSP: Final = "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'"
ABOUT: Final = {
    "title": "Messages Bridge reports",
    "version": "1",
    "description": (
        "Usage, cost and requests of this gateway; nothing here changes them. Send a gateway key "
        "with the scope reports or admin as x-api-key or as Authorization: Bearer. What is set up "
        "(keys, teams, users, models, upstreams, prices) is written in the session of a user."
    ),
}
SECURITY: Final = {
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "session": {"type": "apiKey", "in": "cookie", "name": "sessionid"},
}


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # it has no types
    """What drf-spectacular must know of our own authentication."""

    target_class = "proxy.reports.access.KeyAuthentication"
    name = "key"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return SECURITY["key"]


def schema() -> dict[str, Any]:
    """OpenAPI 3 of /api/v1/ and /v1/organizations/. Nothing of an installation is in it."""
    patterns = [path(f"api/v1/{route}/", view.as_view()) for route, view in VIEWS.items()]
    patterns += [
        path(f"v1/organizations/{route}", view.as_view()) for route, view in WIRE_VIEWS.items()
    ]
    found: dict[str, Any] = SchemaGenerator(patterns=patterns).get_schema(public=True)  # type: ignore[no-untyped-call]  # it has no types
    found["info"] = ABOUT
    found.setdefault("components", {})["securitySchemes"] = SECURITY
    found["security"] = [{name: []} for name in SECURITY]
    for operations in found["paths"].values():
        for method, operation in operations.items():
            operation.pop("security", None)
            operation["responses"] |= dict.fromkeys(ERROR_CODES, ERROR_REFERENCE)
            if method == "get":
                operation["responses"]["304"] = {"description": "The figures are still the same."}
            if "csv" in _formats(operation):
                text = {"schema": {"type": "string"}}
                content = operation["responses"]["200"]["content"]
                content |= {"text/csv": text, "application/x-ndjson": text}
    found["components"]["responses"] = {"Error": ERROR}
    return found


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


class SchemaView(APIView):
    """GET /api/v1/schema/: open to everybody, since it says nothing about anybody."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    renderer_classes = (JSONRenderer,)
    schema = None

    def get_exception_handler(self) -> Any:
        return error_answer

    def get(self, request: Request) -> HttpResponse:
        text = _built("schema", lambda: JSONRenderer().render(schema()))
        return HttpResponse(text, content_type="application/json")


class DocsView(View):
    """GET /api/v1/docs/: the schema as a page."""

    http_method_names = ["get", "head"]  # noqa: RUF012  # Django's own spelling

    def get(self, request: HttpRequest) -> HttpResponse:
        origin = escape(f"{request.scheme}://{request.get_host()}").encode()
        page = HttpResponse(_built("page", _page).replace(ORIGIN, origin))
        page["Content-Security-Policy"] = CSP
        page["X-Content-Type-Options"] = "nosniff"
        return page


def _page() -> bytes:
    return render_to_string(
        "proxy/reports/docs.html",
        {"about": ABOUT, "routes": routes(), "origin": ORIGIN.decode()},
    ).encode()


_building: Final = threading.Lock()
_ready: Final[dict[str, bytes]] = {}


def _built(name: str, build: Callable[[], bytes]) -> bytes:
    """Return what ``build`` makes, once in a process: 90 ms, and its library serves one thread."""
    with _building:
        if name not in _ready:
            _ready[name] = build()
        return _ready[name]


def routes() -> list[dict[str, Any]]:
    """The schema as the page's template needs it."""
    whole = schema()
    parts = whole["components"].get("schemas", {})
    return [
        {
            "path": route,
            "method": method.upper(),
            "about": operation.get("description", ""),
            "parameters": operation.get("parameters", []),
            "columns": _columns(operation, parts),
        }
        for route, operations in whole["paths"].items()
        for method, operation in operations.items()
    ]


def _columns(operation: dict[str, Any], parts: dict[str, Any]) -> list[dict[str, Any]]:
    """The answer's fields, and those of its rows, one level deep."""
    answers = operation["responses"]
    done: dict[str, Any] = next(
        (answers[code] for code in ("200", "201", "202") if code in answers), {}
    )
    body = done.get("content", {})
    fields = _fields(body.get("application/json", {}).get("schema", {}), parts)
    found = []
    for name, field in fields.items():
        found.append({"name": name, **_described(field)})
        for inner, one in _fields(field.get("items", {}), parts).items():
            found.append({"name": f"{name}[].{inner}", **_described(one)})
    return found


def _fields(node: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    name = node.get("$ref", "").rpartition("/")[2]
    properties: dict[str, Any] = parts.get(name, node).get("properties", {})
    return properties


def _described(field: dict[str, Any]) -> dict[str, Any]:
    kind = field.get("type", "object")
    return {
        "kind": f"{kind} or null" if field.get("nullable") else kind,
        "about": field.get("description", ""),
    }
