"""The columns of encrypted texts, and the ids of the keys that encrypted data of this database."""

from collections.abc import Sequence
from typing import Any, Final

from django.db import models
from django.utils.timezone import now

from proxy.encryption.bodies import has_key, key_ids, stored_text, unseal


class BodyTextField(models.TextField):  # type: ignore[type-arg]  # as in Django's migrations
    """A text that is read decrypted. To store it encrypted, ``seal`` it before it is assigned.

    Queries compare the stored form, so an encrypted text is never found by its content.
    """

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> str | None:
        return None if value is None else unseal(value)

    def get_prep_value(self, value: Any) -> Any:
        text = super().get_prep_value(value)
        return stored_text(value if isinstance(value, str) else text)


class MissingKeys:
    """The ids of the missing keys as this process read them last, for notices."""

    ids: Sequence[str] = ()


MISSING: Final = MissingKeys()


class BodyKeyUse(models.Model):
    """The id of a key that encrypted data of this database; the key itself is never stored.

    It shows which keys the gateway should have. ``encryptbodies --forget`` deletes a row.
    """

    key = models.CharField(max_length=8, primary_key=True)  # hexadecimal digits
    since = models.DateTimeField()

    class Meta:
        default_permissions = ()
        ordering = ["since"]

    def __str__(self) -> str:
        return f"body key {self.key}"

    @staticmethod
    def note_current() -> None:
        """Store the id of the key that encrypts new data, if there is one."""
        if has_key():
            row = BodyKeyUse(key=key_ids()[0], since=now())
            BodyKeyUse.objects.bulk_create([row], ignore_conflicts=True)

    @staticmethod
    def missing() -> list[str]:
        """Return the ids of the stored keys that this process does not have, oldest first."""
        stored = BodyKeyUse.objects.values_list("key", flat=True)
        own = set(key_ids())
        return [key for key in stored if key not in own]
