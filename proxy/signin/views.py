"""The way to the provider and back. The library keeps state, nonce and verifier in the session."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from mozilla_django_oidc.views import OIDCAuthenticationCallbackView, OIDCAuthenticationRequestView

from .backend import NOT_BELIEVED, SETTINGS, UNREACHABLE
from .choices import choices
from .provider import ProviderFault, provider

UNKNOWN_SIGN_IN = "That sign-in was not begun here, or is over. Try again."


class _OurSettings:
    """The library's settings, where they are not for operators to choose."""

    def get_settings(self, attr: str, *default: Any) -> Any:
        ours = {**SETTINGS, "LOGIN_REDIRECT_URL": "admin:index"}
        return ours[attr] if attr in ours else super().get_settings(attr, *default)  # type: ignore[misc]  # of the library's view


@method_decorator(never_cache, name="dispatch")
class Begin(_OurSettings, OIDCAuthenticationRequestView):  # type: ignore[misc]  # no types there
    """Send the person to the provider."""

    def __init__(self, **kwargs: Any) -> None:
        super(OIDCAuthenticationRequestView, self).__init__(**kwargs)

    def get(self, request: HttpRequest) -> HttpResponse:
        chosen = choices()
        if chosen is None:  # for the types: the URL has asked
            raise Http404
        try:
            self.OIDC_OP_AUTH_ENDPOINT = provider(chosen.issuer).authorization
        except ProviderFault:
            return back(request, UNREACHABLE)
        self.OIDC_RP_CLIENT_ID = chosen.client_id
        answer: HttpResponse = super().get(request)
        return answer

    def get_settings(self, attr: str, *default: Any) -> Any:
        if attr == "OIDC_RP_SCOPES":
            attr = "OIDC_SCOPES"
        return super().get_settings(attr, *default)


@method_decorator(never_cache, name="dispatch")
class Return(_OurSettings, OIDCAuthenticationCallbackView):  # type: ignore[misc]  # no types there
    """The provider sent the person back, with a code or with an error."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        begun = request.session.get("oidc_states", {})
        if request.GET.get("state") not in begun:  # also of errors: a link may sign nobody out
            return back(request, UNKNOWN_SIGN_IN)
        answer: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        return answer

    def login_failure(self) -> HttpResponse:
        told = "The sign-in provider refused." if "error" in self.request.GET else NOT_BELIEVED
        return back(self.request, getattr(self.request, "sign_in_fault", told))


def back(request: HttpRequest, why: str) -> HttpResponse:
    """To the sign-in page, which says why."""
    messages.error(request, why)
    return HttpResponseRedirect(reverse("admin:login"))
