"""Hooks of drf-spectacular: the paths to document, and what every operation has in common."""

from collections.abc import Mapping
from typing import Any, Final

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
