"""The sign-in page asks whether there is a provider to go to."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django import template
from django.conf import settings
from django.urls import reverse

from proxy.signin.choices import choices

register = template.Library()


@register.simple_tag(takes_context=True)
def sign_in(context: Mapping[str, Any]) -> dict[str, str]:
    """What the button says and where it leads; empty: there is no button."""
    if choices() is None:
        return {}
    wanted = context["request"].GET.get("next", "")
    query = f"?{urlencode({'next': wanted})}" if wanted else ""
    return {"label": settings.OIDC_LABEL, "url": reverse("sign-in") + query}
