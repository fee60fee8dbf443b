"""Who did or read what: one line in the admin's log, for people, keys and commands (T43)."""

from typing import Any, Final

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import models

from .models import ApiKey

GATEWAY: Final = "gateway"
"""The user who stands for commands and for keys that belong to nobody; it cannot sign in."""


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


def note_of_command(command: str, obj: models.Model, message: str) -> None:
    """The same for a command of ``manage.py``, under the user of the gateway."""
    note(_gateway(), obj, f"{message.rstrip('.')}, by the command {command}.")


def rotated(retiring: ApiKey | None) -> str:
    """Return the line of a rotation; without a retiring key there was no secret before."""
    if retiring is None:
        return "Given its first secret."
    return f"Rotated; the old secret ends {retiring.expires:%Y-%m-%d %H:%M} UTC."


def note_of_key(key: ApiKey, obj: models.Model, message: str) -> None:
    """The same for a gateway key: under its user, or the gateway's; the key is named either way."""
    told = f"{message.rstrip('.')}, with key {key} ({key.prefix}…)."
    note(key.user or _gateway(), obj, told)


def _gateway() -> Any:
    user, _ = get_user_model().objects.get_or_create(
        username=GATEWAY, defaults={"is_active": False, "password": "!"}
    )
    return user
