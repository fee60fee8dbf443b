"""Write the audit log: actions of users, gateway keys and commands as Django's LogEntry rows."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import models

from .models import ApiKey

GATEWAY: Final = "gateway"
"""The user of audit entries for a command or for a key without a user. It cannot sign in."""


def note(user: Any, obj: models.Model, message: str, flag: int = CHANGE) -> None:
    """Log that ``user``, who is signed in, changed or read the object."""
    LogEntry.objects.create(
        user_id=int(user.pk or 0),
        content_type_id=ContentType.objects.get_for_model(obj).pk,
        object_id=str(obj.pk),
        object_repr=str(obj)[:200],
        action_flag=flag,
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


def note_by(caller: Any, obj: models.Model, message: str, flag: int = CHANGE) -> None:
    """Log that the caller, a gateway key or a signed-in user, changed or read the object."""
    (note_of_key if isinstance(caller, ApiKey) else note)(caller, obj, message, flag)


def note_write(
    caller: Any,
    obj: models.Model,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    secrets: Iterable[str] = (),
) -> None:
    """Log that the caller created the object (``before`` is empty) or changed it.

    The message has the old and new value of each changed field, and of ``secrets`` only the names.
    """
    if not before:
        note_by(caller, obj, "Added.", ADDITION)
        return
    lines = [
        f"{name}: {before[name]} → {value}"
        for name, value in after.items()
        if before.get(name) != value
    ]
    lines += [f"{name}: changed" for name in sorted(secrets)]
    if lines:
        note_by(caller, obj, f"Changed {'; '.join(lines)}.")


def note_deletion(caller: Any, obj: models.Model) -> None:
    """Log that the caller deletes the object, which still exists."""
    note_by(caller, obj, "Deleted.", DELETION)


def note_of_key(key: ApiKey, obj: models.Model, message: str, flag: int = CHANGE) -> None:
    """Log that a gateway key changed or read the object.

    The entry names the key's user, else ``GATEWAY``.
    """
    entry = f"{message.rstrip('.')}, with key {key} ({key.prefix}…)."
    note(key.user or _gateway_user(), obj, entry, flag)


def _gateway_user() -> Any:
    user, _ = get_user_model().objects.get_or_create(
        username=GATEWAY, defaults={"is_active": False, "password": "!"}
    )
    return user
