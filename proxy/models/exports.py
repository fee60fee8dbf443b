"""Exports that are made in the background and fetched later as one file."""

from django.conf import settings
from django.db import models

from .keys import ApiKey


class ExportState(models.TextChoices):
    """waiting -> running -> done | failed; done -> expired. A runner that died is run again."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"


class Export(models.Model):
    """One asked-for export: what was asked, by whom, and how far it has come.

    Exactly one of ``key`` and ``user`` is set. Their rights when they asked decide which rows are
    in the file; whose rights are others by then does not get it. The file lies in the data
    directory under ``id``.
    """

    id = models.CharField(max_length=40, primary_key=True)  # "export_" + ULID: sorts by time
    report = models.CharField(max_length=16)
    format = models.CharField(max_length=6)
    query = models.JSONField(default=dict)  # the report's parameters, with the span spelled out
    reader = models.JSONField(default=dict)  # whose rows: proxy.visibility.Reader, as it was
    key = models.ForeignKey(ApiKey, null=True, on_delete=models.CASCADE)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE)

    state = models.CharField(max_length=8, choices=ExportState.choices, default=ExportState.WAITING)
    created = models.DateTimeField()
    seen = models.DateTimeField(null=True)  # when its runner last spoke
    tries = models.PositiveSmallIntegerField(default=0)
    finished = models.DateTimeField(null=True)
    expires = models.DateTimeField(null=True)  # null: not done
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
