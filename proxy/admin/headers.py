"""Headers of our own pages: nothing runs, loads or frames that is not ours."""

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


def harden(response: Response, *, csp: str = CSP) -> Response:
    """Forbid everything but our own files; keep stored words out of caches."""
    response[POLICY] = csp
    response["X-Content-Type-Options"] = "nosniff"
    response["Referrer-Policy"] = "same-origin"
    response["Cache-Control"] = "no-store"
    return response


class StrictPages(MiddlewareMixin):
    """Every answer under the admin is hardened, except one that is stricter already."""

    def process_request(self, request: HttpRequest) -> None:
        """No row is called so, and PostgreSQL raises where it is asked for one."""
        if "\x00" in request.path and request.path.startswith(reverse("admin:index")):
            raise Http404("no such page")

    def process_response(self, request: HttpRequest, response: Response) -> Response:
        under = request.path.startswith(reverse("admin:index"))
        return harden(response) if under and not response.has_header(POLICY) else response
