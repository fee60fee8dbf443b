"""Issue and rotate gateway keys for a signed-in user, for the admin and for the reports API."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied, ValidationError
from django.db import transaction
from django.views.decorators.debug import sensitive_variables

from proxy.models import ApiKey, Team
from proxy.permissions.member_keys import member_limits
from proxy.permissions.write_permissions import ADD_OWN, faults, may_rotate


@sensitive_variables("secret")
@transaction.atomic
def issue_own_key(
    user: Any,
    team: Team,
    name: str,
    *,
    expires: datetime | None,
    scopes: Sequence[str],
    models: Sequence[str],
) -> tuple[ApiKey, str]:
    """Create a key that belongs to ``user``, within the limits of the team for its members.

    Without ``models``, the key may use all models that the team allows its members. Returns the key
    and its secret, which is not stored. Raises ValidationError by field.
    """
    team = Team.objects.select_for_update().get(pk=team.pk)  # so that two requests cannot exceed
    fields = {
        "user": user,
        "expires": expires,
        "scopes": list(scopes),
        "models_allowed": list(models or member_limits(team).models),
    }
    key = ApiKey(team=team, name=name, **fields)
    found = faults(user, ADD_OWN, ApiKey, key)
    if found:
        errors: dict[str, list[str]] = {}
        for field, why in found:
            errors.setdefault(field or NON_FIELD_ERRORS, []).append(why)
        raise ValidationError(errors)
    key.full_clean(exclude=["prefix", "digest"])
    key, secret = ApiKey.issue(team, name, **fields)
    return key, secret


@sensitive_variables("secret")
@transaction.atomic
def rotate_key(user: Any, key: ApiKey, overlap: timedelta) -> str:
    """Give the key a new secret and return it; the old one stays valid for ``overlap``.

    Raises PermissionDenied.
    """
    if not may_rotate(user, key):
        raise PermissionDenied
    _, secret = key.rotate(overlap)
    return secret
