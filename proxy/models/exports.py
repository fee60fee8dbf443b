"""Exports of reports that are created in the background and downloaded later as one file."""

from django.conf import settings
from django.db import models

from .setup.keys import ApiKey


class ExportState(models.TextChoices):
    """The states of an export: waiting -> running -> done or failed; done -> expired.

    A run whose process died is repeated.
    """

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"


class Export(models.Model):
    """A requested export: its query, owner and progress.

    Exactly one of ``key`` and ``user`` is set; that is the owner. The owner's permissions at
    creation decide which rows the file contains; if they have changed since, the file cannot be
    downloaded. The file is in the data directory and its name is ``id``.
    """

    id = models.CharField(max_length=40, primary_key=True)  # "export_" + ULID; sorts by time
    report = models.CharField(max_length=16)
    format = models.CharField(max_length=6)
    # The query parameters of the report, with an absolute time range.
    query = models.JSONField(default=dict)
    # The owner's permissions at creation, see proxy.permissions.row_permissions.Reader.
    reader = models.JSONField(default=dict)
    key = models.ForeignKey(ApiKey, null=True, on_delete=models.CASCADE)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE)

    state = models.CharField(max_length=8, choices=ExportState.choices, default=ExportState.WAITING)
    created = models.DateTimeField()
    # Time of the last progress of the process that creates the file.
    seen = models.DateTimeField(null=True)
    tries = models.PositiveSmallIntegerField(default=0)
    finished = models.DateTimeField(null=True)
    # Time when the export expires; null: the export is not done.
    expires = models.DateTimeField(null=True)
    bytes = models.PositiveBigIntegerField(default=0)
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["state", "created"])]
        constraints = [
            models.CheckConstraint(
                name="export_one_owner",
                condition=models.Q(key=None, user__isnull=False)
                | models.Q(key__isnull=False, user=None),
            )
        ]

    def __str__(self) -> str:
        return self.id
