"""Hooks of drf-spectacular: the paths to document, and what every operation has in common."""

from typing import Any, Final

from .examples import example_of, named_example, resolved
from .texts import ERRORS, PARAMETERS, RESPONSES, TAGS

JSON: Final = "application/json"
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
ERROR_REFERENCE: Final = {"$ref": "#/components/schemas/Error"}
FILES: Final = {
    "text/csv": "created_at,cost_usd\r\n2026-11-20T09:14:03.120Z,0.004213\r\n",
    "application/x-ndjson": '{"created_at": "2026-11-20T09:14:03.120Z", "cost_usd": "0.004213"}\n',
    "text/event-stream": 'event: message_stop\ndata: {"type": "message_stop"}\n\n',
    "application/octet-stream": "data: [DONE]\n\n",
}
"""Media type -> an example of a response that is a file."""


def documented_paths(endpoints: list[Any], **_: Any) -> list[Any]:
    """Return the endpoints without the second spelling of each path, which has no last slash."""
    return [one for one in endpoints if not one[0].startswith("/api/") or one[0].endswith("/")]


def complete_operations(result: dict[str, Any], generator: Any, **_: Any) -> dict[str, Any]:
    """Add the errors, the formats, and the descriptions and examples that have no source."""
    result["tags"] = TAGS
    components = result.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Error"] = ERROR_SCHEMA
    components["responses"] = {f"Error{code}": _error(code) for code in ERRORS}
    for path, operations in result["paths"].items():
        resource = _resource(path)
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                _complete_parameter(parameter, schemas)
            _add_formats(operation)
            for code, response in operation["responses"].items():
                _complete_response(resource, code, response, schemas)
            if body := operation.get("requestBody"):
                for content in body["content"].values():
                    content["example"] = example_of("", content["schema"], schemas, resource)
            if method == "get":
                operation["responses"]["304"] = {"description": RESPONSES["304"]}
            errors = {code: {"$ref": f"#/components/responses/Error{code}"} for code in ERRORS}
            operation["responses"] |= errors
    return result


def _resource(path: str) -> str:
    """Return the name by which the examples know the resource of a path."""
    name = path.split("/")[3]
    is_shared = path.startswith("/v1/") and name in {"me", "users"}
    return f"organization_{name}" if is_shared else name


def _error(code: str) -> dict[str, Any]:
    kind, description, message = ERRORS[code]
    example = {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": named_example("request_id"),
    }
    return {
        "description": description,
        "content": {JSON: {"schema": ERROR_REFERENCE, "example": example}},
    }


def _complete_parameter(parameter: dict[str, Any], schemas: dict[str, Any]) -> None:
    name = parameter["name"]
    parameter.setdefault("description", PARAMETERS.get(name, ""))
    parameter["example"] = example_of(name, parameter["schema"], schemas)


def _add_formats(operation: dict[str, Any]) -> None:
    """Add the media types of CSV and NDJSON to an operation whose parameter allows them."""
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "format" and "csv" in parameter["schema"].get("enum", ()):
            content = operation["responses"]["200"]["content"]
            for kind in ("text/csv", "application/x-ndjson"):
                content[kind] = {"schema": {"type": "string"}}


def _complete_response(
    resource: str, code: str, response: dict[str, Any], schemas: dict[str, Any]
) -> None:
    contents = response.get("content", {})
    shape = contents.get(JSON, {}).get("schema", {})
    is_page = "data" in resolved(shape, schemas).get("properties", {})
    response["description"] = RESPONSES["page" if is_page else code]
    for kind, content in contents.items():
        content["example"] = FILES.get(kind) or example_of("", content["schema"], schemas, resource)
