"""The response to a password sign-in after too many failures for its user name and IP address."""

from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse

TEXT: Final = "Too many failed sign-ins. Try again in {minutes} minutes.\n"


def lockout_response(request: HttpRequest, *_: Any) -> HttpResponse:
    """Return a 429 with the time to wait; the response does not reveal whether the user exists."""
    seconds = int(settings.AXES_COOLOFF_TIME.total_seconds())
    response = HttpResponse(
        TEXT.format(minutes=seconds // 60), content_type="text/plain; charset=utf-8", status=429
    )
    response["Retry-After"] = str(seconds)
    response["Cache-Control"] = "no-store"
    return response
