"""The URLs under /sign-in/.

``/sign-in/callback/`` must be registered as a redirect URI at the OpenID Connect provider.

The first sign-in imports mozilla-django-oidc, so installations without a provider never import it.
"""

from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import path

from .oidc_settings import oidc_settings


def sign_in_view(request: HttpRequest, view: str) -> HttpResponseBase:
    """Start a sign-in at the provider, or end it when the provider redirects back to this site."""
    if oidc_settings() is None:
        raise Http404("sign-in through a provider is not configured")
    from . import views  # noqa: PLC0415 - the module's docstring gives the reason

    response: HttpResponseBase = getattr(views, view).as_view()(request)
    return response


urlpatterns = [
    path("", sign_in_view, {"view": "BeginView"}, name="sign-in"),
    path("callback/", sign_in_view, {"view": "CallbackView"}, name="sign-in-callback"),
]
