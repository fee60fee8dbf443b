"""Write the audit log: actions of users, gateway keys and commands as Django's LogEntry rows."""

from typing import Any, Final

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import models

from .models import ApiKey

GATEWAY: Final = "gateway"
"""The user of audit entries for a command or for a key without a user. It cannot sign in."""


def note(user: Any, obj: models.Model, message: str) -> None:
    """Log that ``user``, who is signed in, changed or read the object."""
    LogEntry.objects.create(
        user_id=int(user.pk or 0),
        content_type_id=ContentType.objects.get_for_model(obj).pk,
        object_id=str(obj.pk),
        object_repr=str(obj)[:200],
        action_flag=CHANGE,
        change_message=message,
    )


def note_of_command(command: str, obj: models.Model, message: str) -> None:
    """Log that a command of ``manage.py`` changed an object."""
    note(_gateway_user(), obj, f"{message.rstrip('.')}, by the command {command}.")


def rotated(retiring: ApiKey | None) -> str:
    """Return the audit message for a key rotation.

    ``retiring``: the row with the old secret, if any.
    """
    if retiring is None:
        return "Given its first secret."
    return f"Rotated; the old secret ends {retiring.expires:%Y-%m-%d %H:%M} UTC."


def note_of_key(key: ApiKey, obj: models.Model, message: str) -> None:
    """Log that a gateway key changed or read the object.

    The entry names the key's user, else ``GATEWAY``.
    """
    entry = f"{message.rstrip('.')}, with key {key} ({key.prefix}…)."
    note(key.user or _gateway_user(), obj, entry)


def _gateway_user() -> Any:
    user, _ = get_user_model().objects.get_or_create(
        username=GATEWAY, defaults={"is_active": False, "password": "!"}
    )
    return user
