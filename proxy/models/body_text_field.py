"""A text column that holds text of a conversation, encrypted if there are body keys."""

from typing import Any

from django.db import models

from proxy.body_encryption import stored_text, unseal


class BodyTextField(models.TextField):  # type: ignore[type-arg]  # as in Django's migrations
    """A text that is read decrypted. To store it encrypted, ``seal`` it before it is assigned.

    Queries compare the stored form, so an encrypted text is never found by its content.
    """

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> str | None:
        return None if value is None else unseal(value)

    def get_prep_value(self, value: Any) -> Any:
        text = super().get_prep_value(value)
        return stored_text(value if isinstance(value, str) else text)
