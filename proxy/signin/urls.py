"""The URLs under /sign-in/.

``/sign-in/callback/`` must be registered as a redirect URI at the OpenID Connect provider.

The first sign-in imports mozilla-django-oidc, so installations without a provider never import it.
"""

from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import path

from .oidc_settings import oidc_settings


def begin(request: HttpRequest) -> HttpResponseBase:
    """Start a sign-in: redirect to the OpenID Connect provider."""
    _require_provider()
    from .views import BeginView  # noqa: PLC0415 - the module's docstring gives the reason

    response: HttpResponseBase = BeginView.as_view()(request)
    return response


def callback(request: HttpRequest) -> HttpResponseBase:
    """Handle the provider's redirect back to this site, which ends the sign-in."""
    _require_provider()
    from .views import CallbackView  # noqa: PLC0415 - the module's docstring gives the reason

    response: HttpResponseBase = CallbackView.as_view()(request)
    return response


def _require_provider() -> None:
    if oidc_settings() is None:
        raise Http404("sign-in through a provider is not configured")


urlpatterns = [
    path("", begin, name="sign-in"),
    path("callback/", callback, name="sign-in-callback"),
]
