"""Django's system check for incomplete or invalid settings of the OpenID Connect sign-in."""

from typing import Any

from django.core import checks

from .oidc_settings import maps_no_team, setting_errors


def check_sign_in(app_configs: Any = None, **_: Any) -> list[checks.CheckMessage]:
    """Return an error for each missing or invalid sign-in setting, or else the warnings."""
    hint = "See docs/guides/sign-in.md; without any BRIDGE_OIDC_* users sign in with a password."
    errors = [checks.Error(message, hint=hint, id="proxy.E020") for message in setting_errors()]
    if errors or not maps_no_team():
        return [*errors]
    message = "BRIDGE_OIDC_GROUPS gives no team to owners and auditors: they will see nothing"
    hint = "Add a pair THEIRS=team:<name>, or THEIRS=team:* for all teams."
    return [checks.Warning(message, hint=hint, id="proxy.W021")]
