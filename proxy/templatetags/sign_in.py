"""The template tag for the button of the OpenID Connect sign-in."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django import template
from django.conf import settings
from django.urls import reverse

from proxy.signin.oidc_settings import oidc_settings

register = template.Library()


@register.simple_tag(takes_context=True)
def sign_in(context: Mapping[str, Any]) -> dict[str, str]:
    """Return the label and URL of the sign-in button; empty if no provider is configured."""
    if oidc_settings() is None:
        return {}
    next_url = context["request"].GET.get("next", "")
    query = f"?{urlencode({'next': next_url})}" if next_url else ""
    return {"label": settings.OIDC_LABEL, "url": reverse("sign-in") + query}
