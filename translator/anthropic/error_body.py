"""Anthropic's error body, the mapping of HTTP statuses to error types, and error redaction."""

import re
from collections.abc import Mapping
from typing import Any, Final

from translator.secret_redaction import REMOVED, clean_error_text

STATUS_BY_TYPE: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "timeout_error": 504,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "overloaded_error": 529,
}

TYPE_BY_STATUS: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    524: "timeout_error",
    529: "overloaded_error",
}

MAX_MESSAGE: Final = 500

_PRIVATE_DETAILS: Final = re.compile(
    r"""
    \b[a-z][a-z0-9+.-]{0,20}://[^\s"'<>]+         # a URL names hosts
    | \barn:aws[a-z-]*:[^\s"'<>]+                  # an ARN names an account and a role
    | \b(?:org|proj|sess|key)[-_][A-Za-z0-9*_-]{6,}
    | \b(?:[a-z0-9-]{1,63}\.){1,8}(?:com|net|org|io|ai|dev|cloud|local|internal|azure)\b
      (?::\d{1,5})?
    | \b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b
    | \blocalhost\b(?::\d{1,5})?
    | (?:(?<=\bhost\ )|(?<=\bto\ )|(?<=\bat\ ))[a-z][\w-]{0,62}:\d{2,5}\b  # one label
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Matches names of the operator's network or accounts; ``clean_error_text`` handles credentials."""


def error_body(
    error_type: str, message: str, request_id: str, error_code: str | None = None
) -> dict[str, Any]:
    """Return the body of an error response. Source: Anthropic documentation, "Errors"."""
    error: dict[str, Any] = {"type": error_type, "message": message}
    if error_code is not None:
        error["details"] = {"error_code": error_code}
    return {"type": "error", "error": error, "request_id": request_id}


def error_type_of(status: int) -> str:
    """Return Anthropic's error type for an HTTP status.

    An unknown 4xx status gives ``invalid_request_error``, any other ``api_error``.
    """
    if status in TYPE_BY_STATUS:
        return TYPE_BY_STATUS[status]
    return "invalid_request_error" if 400 <= status < 500 else "api_error"


def client_message(text: str) -> str:
    """Return an upstream's error text as one line, without keys, URLs, hosts and account ids."""
    line = _PRIVATE_DETAILS.sub(REMOVED, " ".join(clean_error_text(text).split()))
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"
