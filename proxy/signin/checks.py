"""A sign-in that is set by half, or wrongly, refuses every start."""

from typing import Any

from django.core import checks

from .choices import mistakes


def check_sign_in(app_configs: Any = None, **_: Any) -> list[checks.CheckMessage]:
    """Run by every command (``manage.py check``)."""
    hint = "See docs/sign-in.md; without any BRIDGE_OIDC_* people sign in by password."
    return [checks.Error(mistake, hint=hint, id="proxy.E020") for mistake in mistakes()]
