"""Purges that were asked for in the admin: who, when, and what became of them."""

from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import models
from django.utils.timezone import now

SILENT: Final = timedelta(minutes=2)
"""A purge that says nothing for so long has died with its process. What it deleted is deleted."""


class PurgeState(models.TextChoices):
    """running -> done | failed. One runs at a time."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Purge(models.Model):
    """One purge of what is past its team's retention, and how far it has come."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    username = models.CharField(max_length=150)  # stays when the user goes
    rewrite = models.BooleanField(default=False)  # SQLite: the file is rewritten afterwards
    state = models.CharField(max_length=8, choices=PurgeState.choices, default=PurgeState.RUNNING)
    step = models.CharField(max_length=40, blank=True)  # what it is at
    created = models.DateTimeField()  # what is past its time then goes
    seen = models.DateTimeField()  # when its process last spoke
    finished = models.DateTimeField(null=True)
    expected = models.PositiveBigIntegerField(null=True)  # transcripts; null: not counted in time
    transcripts = models.PositiveBigIntegerField(default=0)  # deleted so far
    parts = models.PositiveBigIntegerField(default=0)  # the same
    bytes_freed = models.BigIntegerField(null=True)  # given back to the disk; null: nobody knows
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.UniqueConstraint(
                name="purge_one_runs", fields=["state"], condition=models.Q(state="running")
            )
        ]

    def __str__(self) -> str:
        return f"purge {self.pk}"

    @property
    def silent(self) -> bool:
        return self.state == PurgeState.RUNNING and self.seen < now() - SILENT
