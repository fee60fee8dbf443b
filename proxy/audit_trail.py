"""Who did or read what: one line in the admin's log, for people and for keys (T43)."""

from typing import Any, Final

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import models

from .models import ApiKey

GATEWAY: Final = "gateway"
"""The user who stands for keys that belong to nobody; it cannot sign in."""


def note(user: Any, obj: models.Model, message: str) -> None:
    """Note what a signed-in user did to an object or read of it."""
    LogEntry.objects.create(
        user_id=int(user.pk or 0),
        content_type_id=ContentType.objects.get_for_model(obj).pk,
        object_id=str(obj.pk),
        object_repr=str(obj)[:200],
        action_flag=CHANGE,
        change_message=message,
    )


def note_of_key(key: ApiKey, obj: models.Model, message: str) -> None:
    """The same for a gateway key: under its user, or the gateway's; the key is named either way."""
    user = key.user
    if user is None:
        user, _ = get_user_model().objects.get_or_create(
            username=GATEWAY, defaults={"is_active": False, "password": "!"}
        )
    note(user, obj, f"{message.rstrip('.')}, with key {key} ({key.prefix}…).")
