"""The redirects to the OpenID Connect provider and back.

Django's session stores the state, nonce and PKCE code verifier of the sign-in.
"""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from mozilla_django_oidc.views import OIDCAuthenticationCallbackView, OIDCAuthenticationRequestView

from .backend import NOT_VERIFIED, SETTINGS, UNREACHABLE
from .oidc_client import ProviderError, load_provider
from .oidc_settings import oidc_settings

UNKNOWN_SIGN_IN = "This sign-in was not started here, or has expired. Try again."


class _FixedSettings:
    """Mixin with the settings of mozilla-django-oidc that operators cannot change."""

    def get_settings(self, attr: str, *default: Any) -> Any:
        fixed = {**SETTINGS, "LOGIN_REDIRECT_URL": "admin:index"}
        return fixed[attr] if attr in fixed else super().get_settings(attr, *default)  # type: ignore[misc]  # the view of mozilla-django-oidc defines it


@method_decorator(never_cache, name="dispatch")
class BeginView(_FixedSettings, OIDCAuthenticationRequestView):  # type: ignore[misc]  # the library has no types
    """Redirect to the provider's authorization endpoint."""

    def __init__(self, **kwargs: Any) -> None:
        super(OIDCAuthenticationRequestView, self).__init__(**kwargs)

    def get(self, request: HttpRequest) -> HttpResponse:
        config = oidc_settings()
        if config is None:  # this is never true, since urls.py checks it first; mypy needs it
            raise Http404
        try:
            self.OIDC_OP_AUTH_ENDPOINT = load_provider(config.issuer).authorization
        except ProviderError:
            return redirect_to_login(request, UNREACHABLE)
        self.OIDC_RP_CLIENT_ID = config.client_id
        response: HttpResponse = super().get(request)
        return response

    def get_settings(self, attr: str, *default: Any) -> Any:
        if attr == "OIDC_RP_SCOPES":
            attr = "OIDC_SCOPES"
        return super().get_settings(attr, *default)


@method_decorator(never_cache, name="dispatch")
class CallbackView(_FixedSettings, OIDCAuthenticationCallbackView):  # type: ignore[misc]  # the library has no types
    """Handle the redirect from the provider with an authorization code or an error."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        states = request.session.get("oidc_states", {})
        if request.GET.get("state") not in states:  # a forged link must not end a session
            return redirect_to_login(request, UNKNOWN_SIGN_IN)
        response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        return response

    def login_failure(self) -> HttpResponse:
        default = "The sign-in provider refused." if "error" in self.request.GET else NOT_VERIFIED
        return redirect_to_login(self.request, getattr(self.request, "sign_in_error", default))


def redirect_to_login(request: HttpRequest, message: str) -> HttpResponse:
    """Redirect to the sign-in page, which shows ``message``."""
    messages.error(request, message)
    return HttpResponseRedirect(reverse("admin:login"))
