"""Purges of expired transcripts with their progress and result."""

from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import models
from django.utils.timezone import now

STALLED_AFTER: Final = timedelta(minutes=2)
"""A running purge without progress for this time has stopped, because its process has ended."""


class PurgeState(models.TextChoices):
    """The states of a purge: running -> done or failed. Only one purge runs at a time."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Purge(models.Model):
    """A run that deletes transcripts past their team's retention."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    username = models.CharField(max_length=150)  # stays when the user is deleted
    rewrite = models.BooleanField(default=False)  # SQLite: VACUUM afterwards, to shrink the file
    state = models.CharField(max_length=8, choices=PurgeState.choices, default=PurgeState.RUNNING)
    step = models.CharField(max_length=40, blank=True)  # current step, for display
    created = models.DateTimeField()  # transcripts that are expired at this time are deleted
    seen = models.DateTimeField()  # time of the last progress
    finished = models.DateTimeField(null=True)
    # Number of transcripts to delete; null: counting took too long.
    expected = models.PositiveBigIntegerField(null=True)
    transcripts = models.PositiveBigIntegerField(default=0)  # number deleted so far
    parts = models.PositiveBigIntegerField(default=0)  # number deleted so far
    bytes_freed = models.BigIntegerField(null=True)  # disk space; null: unknown
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
    def is_stalled(self) -> bool:
        return self.state == PurgeState.RUNNING and self.seen < now() - STALLED_AFTER
