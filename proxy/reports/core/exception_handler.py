"""Error responses of the reports API: always with Anthropic's error body, never with DRF's."""

import logging
import sys
from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import (
    DisallowedHost,
    PermissionDenied,
    SuspiciousOperation,
    TooManyFieldsSent,
)
from django.db import DatabaseError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.views import defaults
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions, status
from rest_framework.response import Response

from proxy.encryption.bodies import MissingBodyKey
from proxy.ids import new_ulid
from proxy.ledger.errors import LedgerUnavailable

API: Final = ("/v1/", "/api/")
"""Path prefixes under which every response is JSON, except the documentation page."""

logger = logging.getLogger(__name__)

ERROR_TYPES: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


class Conflict(exceptions.APIException):
    status_code = status.HTTP_409_CONFLICT
    default_detail = "the current state does not allow this"


class MissingKey(exceptions.APIException):
    """The requested text is encrypted with a key that this gateway does not have."""

    status_code = status.HTTP_409_CONFLICT

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        super().__init__(f"the transcript is {MissingBodyKey(key_id)}")


class QueryTooSlow(exceptions.APIException):
    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = (
        "the query took too long and was stopped; choose a shorter time range or more filters"
    )


RETRY_S: Final = 5
"""``Retry-After`` while the database cannot be read."""


def is_database_fault(exc: BaseException | None) -> bool:
    """Whether the database cannot be reached or read: the request is not to blame.

    SQLite reports a damaged file as DatabaseError, without a subclass; the subclasses that are not
    named here are errors of a query.
    """
    away = isinstance(exc, OperationalError | InterfaceError | LedgerUnavailable)
    return away or type(exc) is DatabaseError


def new_request_id() -> str:
    return f"req_{new_ulid()}"


def error_body(code: int, message: str, request_id: str) -> dict[str, Any]:
    kind = ERROR_TYPES.get(code, "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id,
    }


def exception_handler(exc: Exception, context: dict[str, Any]) -> Response:
    """Convert an exception of a DRF view to an error response; log unexpected exceptions."""
    request_id = getattr(context.get("view"), "request_id", "") or new_request_id()
    headers: dict[str, str] = {}
    code: int
    if isinstance(exc, Http404):
        code, message = status.HTTP_404_NOT_FOUND, str(exc) or "not found"
    elif isinstance(exc, PermissionDenied):
        code, message = status.HTTP_403_FORBIDDEN, str(exc) or "not allowed"
    elif isinstance(exc, exceptions.APIException):
        code, message = exc.status_code, format_detail(exc.detail)
        if isinstance(exc, exceptions.NotAuthenticated):
            message = "no gateway key; send x-api-key or Authorization: Bearer"
        if scheme := getattr(exc, "auth_header", None):
            headers["WWW-Authenticate"] = scheme
        if wait := getattr(exc, "wait", None):
            headers["Retry-After"] = str(int(wait) + 1)
    elif isinstance(exc, SuspiciousOperation):
        code, message = status.HTTP_400_BAD_REQUEST, _why_bad(exc)
    elif is_database_fault(exc):
        logger.error("report %s failed: %s: %s", request_id, type(exc).__name__, exc)
        code, message = status.HTTP_503_SERVICE_UNAVAILABLE, "the database cannot be read now"
        headers["Retry-After"] = str(RETRY_S)
    else:
        logger.error("report %s failed", request_id, exc_info=exc)
        code, message = status.HTTP_500_INTERNAL_SERVER_ERROR, "internal error"
    if code in (status.HTTP_401_UNAUTHORIZED, status.HTTP_403_FORBIDDEN):
        headers["x-should-retry"] = "false"  # see FINAL_STATUSES of the gateway
    body = error_body(code, message, request_id)
    if isinstance(exc, MissingKey):
        body["error"]["missing_body_key"] = exc.key_id
    return Response(body, status=code, headers=headers)


def format_detail(detail: Any, path: str = "") -> str:
    """Return DRF's nested error details as a line like ``bucket: "3d" is not a valid choice``."""
    if isinstance(detail, dict):
        # DRF names the index of a list item; the parameter's name replaces it.
        parts = (
            format_detail(
                value, path if name == "non_field_errors" or isinstance(name, int) else name
            )
            for name, value in detail.items()
        )
        return "; ".join(parts)
    if isinstance(detail, list):
        detail = " ".join(format_detail(item) for item in detail)
    return f"{path}: {detail}" if path else str(detail)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return the 400 for errors that Django detects, such as an unknown host; JSON for the API."""
    if not request.path.startswith(API):
        return defaults.bad_request(request, exception)
    if isinstance(exception, DisallowedHost):
        host = request.META.get("HTTP_HOST", "")[:200]
        message = f"host {host!r} is not served here; BRIDGE_ALLOWED_HOSTS lists the served hosts"
        return _error_response(400, message)
    return _error_response(400, _why_bad(exception))


def _why_bad(exc: Exception) -> str:
    """Say what is wrong with a request that Django rejects while it parses it."""
    if isinstance(exc, TooManyFieldsSent):
        return f"the request has more than {settings.DATA_UPLOAD_MAX_NUMBER_FIELDS} parameters"
    return "the request is invalid"


def server_error(request: HttpRequest) -> HttpResponse:
    """Return the 500 for an error outside the DRF views, or the 503 if it is of the database.

    Django calls it while it handles the exception, and logs the traceback.
    """
    is_api = request.path.startswith(API)
    if is_database_fault(sys.exc_info()[1]):
        response = (
            _error_response(503, "the database cannot be read now")
            if is_api
            else HttpResponse(render_to_string("503_database.html"), status=503)
        )
        response["Retry-After"] = str(RETRY_S)
        return response
    return _error_response(500, "internal error") if is_api else defaults.server_error(request)


@csrf_exempt  # without this, a POST to an unknown path gets the CSRF error page, not a 404
def not_found(request: HttpRequest, rest: str = "") -> JsonResponse:
    """Return the 404 for an unknown path under the API's path prefixes."""
    return _error_response(404, f"no such path: {request.path[:200]!r}")


def _error_response(code: int, message: str) -> JsonResponse:
    request_id = new_request_id()
    body = error_body(code, message, request_id)
    return JsonResponse(body, status=code, headers={"request-id": request_id})
