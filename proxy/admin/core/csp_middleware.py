"""Security headers of the admin pages: they block scripts, styles and frames of other origins."""

from typing import Final, TypeVar

from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils.deprecation import MiddlewareMixin

Response = TypeVar("Response", bound=HttpResponseBase)

POLICY: Final = "Content-Security-Policy"
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
BARE_CSP: Final = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; sandbox"


def set_security_headers(response: Response, *, csp: str = CSP) -> Response:
    """Set security headers: no caching, and by default only resources of this origin may load."""
    response[POLICY] = csp
    response["X-Content-Type-Options"] = "nosniff"
    response["Referrer-Policy"] = "same-origin"
    response["Cache-Control"] = "no-store"
    return response


class AdminCspMiddleware(MiddlewareMixin):
    """Set security headers on admin responses without a Content-Security-Policy of their own."""

    def process_request(self, request: HttpRequest) -> None:
        """Raise Http404 if the path contains a NUL, because PostgreSQL raises an error on it."""
        if "\x00" in request.path and request.path.startswith(reverse("admin:index")):
            raise Http404("no such page")

    def process_response(self, request: HttpRequest, response: Response) -> Response:
        is_admin = request.path.startswith(reverse("admin:index"))
        return (
            set_security_headers(response)
            if is_admin and not response.has_header(POLICY)
            else response
        )
