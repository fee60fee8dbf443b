"""What a sign-in is answered once its user and address have failed too often."""

from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse

TEXT: Final = "Too many failed sign-ins. Try again in {minutes} minutes.\n"


def locked_out(request: HttpRequest, *_: Any) -> HttpResponse:
    """429 as plain text: it says how long, and nothing about whether the user exists."""
    seconds = int(settings.AXES_COOLOFF_TIME.total_seconds())
    answer = HttpResponse(
        TEXT.format(minutes=seconds // 60), content_type="text/plain; charset=utf-8", status=429
    )
    answer["Retry-After"] = str(seconds)
    answer["Cache-Control"] = "no-store"
    return answer
