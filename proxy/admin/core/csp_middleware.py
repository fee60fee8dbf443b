"""Security headers of the admin pages, and visible invisible characters in their texts.

The headers block scripts, styles and frames of other origins. Of the project's own pages, only the
viewer of PDFs allows to be framed.
"""

import re
from collections.abc import Sequence
from typing import Final, TypeVar

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils.deprecation import MiddlewareMixin

from proxy.ledger.archive.reading import restore_hint
from proxy.ledger.transcripts.visible_text import INVISIBLE, show_invisible

Response = TypeVar("Response", bound=HttpResponseBase)

POLICY: Final = "Content-Security-Policy"
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
FORM_VALUE: Final = re.compile(r'(\bvalue="[^"]*"|<textarea[^<]*</textarea>)')
"""The parts of a page that a form sends back; they stay unchanged. Django escapes `<` in them."""
BARE_CSP: Final = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; sandbox"


def set_security_headers(response: Response, *, csp: str = CSP) -> Response:
    """Set security headers: no caching, and by default only resources of this origin may load."""
    response[POLICY] = csp
    response["X-Content-Type-Options"] = "nosniff"
    response["Referrer-Policy"] = "same-origin"
    response["Cache-Control"] = "no-store"
    return response


class ArchivedPage(Http404):
    """What the page shows may be in one of these months, so it is not in the database (ADR 0015).

    It says nothing about whether it exists: the months are those of its id or of the ledger.
    """

    def __init__(self, months: Sequence[str]) -> None:
        self.hint = restore_hint(months)
        super().__init__(self.hint)


class AdminCspMiddleware(MiddlewareMixin):
    """Set security headers on admin responses without a Content-Security-Policy of their own.

    On all pages, invisible characters of the texts become visible, except in the values of forms.
    """

    def process_request(self, request: HttpRequest) -> None:
        """Raise Http404 if the path contains a NUL, because PostgreSQL raises an error on it."""
        if "\x00" in request.path and request.path.startswith(reverse("admin:index")):
            raise Http404("no such page")

    def process_exception(self, request: HttpRequest, exc: Exception) -> HttpResponse | None:
        """Show a page with the command that brings an archived month back."""
        if not isinstance(exc, ArchivedPage):
            return None
        return render(request, "archived.html", {"hint": exc.hint}, status=404)

    def process_response(self, request: HttpRequest, response: Response) -> Response:
        if not request.path.startswith(reverse("admin:index")):
            return response
        if isinstance(response, HttpResponse) and "text/html" in response.get("Content-Type", ""):
            page = response.content.decode()
            if INVISIBLE.search(page):
                parts = FORM_VALUE.split(page)
                parts[::2] = map(show_invisible, parts[::2])
                response.content = "".join(parts)
        return response if response.has_header(POLICY) else set_security_headers(response)
