"""Django's system check for incomplete or invalid settings of the OpenID Connect sign-in."""

from typing import Any

from django.core import checks

from .oidc_settings import setting_errors


def check_sign_in(app_configs: Any = None, **_: Any) -> list[checks.CheckMessage]:
    """Return an error for each missing or invalid sign-in setting."""
    hint = "See docs/guides/sign-in.md; without any BRIDGE_OIDC_* users sign in with a password."
    return [checks.Error(message, hint=hint, id="proxy.E020") for message in setting_errors()]
