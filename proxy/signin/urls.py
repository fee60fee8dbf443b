"""Mounted under /sign-in/; the provider must know ``/sign-in/callback/`` as our redirect URI.

The library is loaded by the first sign-in: an installation without a provider never needs it.
"""

from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import path

from .choices import choices


def begin(request: HttpRequest) -> HttpResponseBase:
    """To the provider."""
    _need_provider()
    from .views import Begin  # noqa: PLC0415 - see the module

    answer: HttpResponseBase = Begin.as_view()(request)
    return answer


def callback(request: HttpRequest) -> HttpResponseBase:
    """Back from the provider."""
    _need_provider()
    from .views import Return  # noqa: PLC0415 - see the module

    answer: HttpResponseBase = Return.as_view()(request)
    return answer


def _need_provider() -> None:
    if choices() is None:
        raise Http404("there is no such sign-in here")


urlpatterns = [
    path("", begin, name="sign-in"),
    path("callback/", callback, name="sign-in-callback"),
]
