"""Writes over REST that carried an ``Idempotency-Key``."""

from django.db import models


class IdempotentWrite(models.Model):
    """A write that a caller may repeat within a day, with its response."""

    owner = models.BigIntegerField()
    """The id of the gateway key, or minus the id of the user."""
    name = models.CharField(max_length=255)
    """The idempotency key."""
    digest = models.BinaryField(max_length=32)
    """Of method, path and body."""
    response = models.TextField(blank=True)
    """Status and body, encrypted, as the body may have a secret; empty: the write still runs."""
    created = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "name"], name="idempotentwrite_owner_name")
        ]

    def __str__(self) -> str:
        return self.name
