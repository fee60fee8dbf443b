"""The OpenAPI document of /api/v1/ and /v1/organizations/."""

import copy
import re
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from django.conf import settings
from django.utils import translation
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiExample

BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "teams_post": {"name": "platform", "retention_days": 30, "limits": {"rpm": 600}},
    "keys_post": {"team": "platform", "name": "ci", "scopes": ["messages"]},
    "own_keys_post": {"team": "platform", "name": "laptop"},
    "users_post": {"name": "ada", "email": "ada@example.com", "groups": ["member"]},
    "upstreams_post": {
        "name": "openai",
        "dialect": "responses",
        "base_url": "https://api.openai.com/v1",
        "api_key_from": {"env": "OPENAI_API_KEY"},
    },
    "models_post": {"model": "claude-*", "targets": [{"upstream": "openai", "model": "gpt-5.2"}]},
    "prices_post": {"model": "gpt-5.2", "since": "2026-01-01", "input": "1.75", "output": "14"},
    "budgets_post": {"team": "platform", "limit_usd": "500", "period": "month"},
    "webhooks_post": {"name": "chat", "url": "https://hooks.example.com/x"},
    "pauses_post": {"upstream": "openai", "message": "back at noon"},
}
"""Operation id -> an example of its body, with the fewest fields."""
_lock: Final = threading.Lock()


class CachedGenerator(SchemaGenerator):
    """A generator that builds the document once.

    The document is the same for every caller and installation. To build it takes 200 ms, and the
    generator is not thread-safe.
    """

    built: ClassVar[dict[str, Any]] = {}

    def get_schema(self, request: Any = None, public: bool = False) -> dict[str, Any]:
        with _lock:
            cls = type(self)
            if not cls.built:
                # The view takes a language and a version from the query; the document has only one.
                self.api_version = None
                with translation.override(settings.LANGUAGE_CODE):
                    cls.built = super().get_schema(None, public=True)  # type: ignore[no-untyped-call]  # the library has no types
            return copy.copy(cls.built)


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # as above
    """The two headers that ``KeyAuthentication`` accepts, as OpenAPI security schemes."""

    target_class = "proxy.reports.core.permissions.KeyAuthentication"
    name = ["key", "bearer"]  # noqa: RUF012  # as the library declares it

    def get_security_requirement(self, auto_schema: Any) -> list[dict[str, list[str]]]:
        """Return the requirements as alternatives: one of the headers is enough."""
        return [{name: []} for name in self.name]

    def get_security_definition(self, auto_schema: Any) -> list[dict[str, str]]:
        return [
            {"type": "apiKey", "in": "header", "name": "x-api-key"},
            {"type": "http", "scheme": "bearer"},
        ]


ERROR_SCHEMA: Final = {
    "type": "object",
    "description": "The error body of Anthropic's API.",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"type": "string", "enum": ["error"]},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}
ERRORS: Final[Mapping[str, str]] = {
    "400": "A parameter or a field of the body is unknown or invalid; the message names it.",
    "401": "The request has neither a valid gateway key nor a session.",
    "403": "The caller lacks the scope or the permission that the message names.",
    "404": "The object does not exist, or the caller may not see it.",
    "405": "The path does not support the method.",
    "409": "The current state does not allow the request; the message has the reason.",
    "413": "The body has too many bytes or values.",
    "429": "The caller sent too many requests in a minute; `Retry-After` is the wait in seconds.",
    "503": "The database or a shared store did not answer in time.",
}


def documented_paths(endpoints: list[Any], **_: Any) -> list[Any]:
    """Return the endpoints without the second spelling of each path, which has no last slash."""
    return [one for one in endpoints if not one[0].startswith("/api/") or one[0].endswith("/")]


def add_errors_and_formats(result: dict[str, Any], generator: Any, **_: Any) -> dict[str, Any]:
    """Add to every operation its errors, and the media types of a table's other formats."""
    components = result["components"]
    components["schemas"]["Error"] = ERROR_SCHEMA
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    components["responses"] = {
        f"Error{code}": {"description": text, "content": content} for code, text in ERRORS.items()
    }
    errors = {code: {"$ref": f"#/components/responses/Error{code}"} for code in ERRORS}
    for operations in result["paths"].values():
        for method, operation in operations.items():
            _add_table_formats(operation)
            if method == "get":
                not_modified = "The result has the `ETag` of the request's `If-None-Match`."
                operation["responses"]["304"] = {"description": not_modified}
            operation["responses"] |= errors
    return result


def _add_table_formats(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "format" and "csv" in parameter["schema"].get("enum", ()):
            content = operation["responses"]["200"]["content"]
            for kind in ("text/csv", "application/x-ndjson"):
                content[kind] = {"schema": {"type": "string"}}


VERBS: Final = {"create": "post", "partial_update": "patch", "destroy": "delete"}


class OperationSchema(AutoSchema):
    """Derive each operation id from the name of the view: ``requests``, ``request``.

    Generated clients have methods with these names. The default of drf-spectacular is one name for
    the list and for the single row, with a number added to one of them.
    """

    view: Any  # a ReportView

    def get_override_parameters(self) -> list[Any]:
        """Return the parameters that the view validates: those of a list, or of a row."""
        if self.method != "GET":
            return []
        is_row = getattr(self.view, "action", None) == "retrieve"
        shape = self.view.row_parameters if is_row else self.view.parameters
        return [shape] if shape().fields else []

    def get_response_serializers(self) -> Any:
        answer = self.view.answer if self.method == "GET" else None
        return {200: answer} if answer else super().get_response_serializers()

    def get_filter_backends(self) -> list[Any]:
        """Return none: the view's parameters include those of its filters and its pages."""
        return []

    def _get_pagination_parameters(self) -> list[Any]:
        return []

    def get_examples(self) -> list[OpenApiExample]:
        body = BODIES.get(self.get_operation_id())
        return [OpenApiExample("example", value=body, request_only=True)] if body else []

    def get_tags(self) -> list[str]:
        """Group the operations by their resource: the part of the path after the version."""
        if self.path.startswith("/v1/organizations/"):
            return ["organizations"]
        return [self.path.split("/")[3] or "index"]

    def get_operation_id(self) -> str:
        if action := getattr(self.view, "action", None):
            return _operation_of_viewset(self.view.resource, action)
        view = type(self.view).__name__.removesuffix("View")
        words = [word.lower() for word in re.findall("[A-Z][a-z]*", view)]
        verb = [] if self.method == "GET" else [self.method.lower()]
        layer = ["organizations"] if self.path.startswith("/v1/organizations/") else []
        return "_".join([*layer, *words, *verb])


def _operation_of_viewset(name: str, action: str) -> str:
    """Return the operation id of a viewset's action.

    For the resource ``keys`` these are ``keys`` (list), ``key`` (one row), ``keys_post``,
    ``key_patch`` and ``key_delete``.
    """
    noun = name if action in {"list", "create"} else name.removesuffix("s")
    return "_".join([noun, *([VERBS[action]] if action in VERBS else [])])
