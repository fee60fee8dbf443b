"""Pauses: requests to an upstream or for a model are rejected with a message for the clients."""

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils.timezone import now

from .upstreams import Upstream


class Pause(models.Model):
    """A pause of an upstream, of a model, or of a model at one upstream.

    Requests skip a paused target if the route has another one; else the client gets a 529 with the
    message. Deleting the row ends the pause.
    """

    upstream = models.ForeignKey(Upstream, null=True, blank=True, on_delete=models.CASCADE)
    model = models.CharField(
        max_length=200,
        blank=True,
        help_text="The requested model or the upstream's; a glob such as claude-*. Empty: every.",
    )
    message = models.CharField(max_length=300, help_text="The error message that clients get.")
    ends = models.DateTimeField(null=True, blank=True)  # null: until the row is deleted
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        name = self.model or "every model"
        return f"{name} at {self.upstream}" if self.upstream else name

    def clean(self) -> None:
        if self.upstream is None and not self.model:
            raise ValidationError({"upstream": "choose an upstream, enter a model, or both"})

    @classmethod
    def active(cls) -> "models.QuerySet[Pause]":
        """Return the pauses that have not ended."""
        rows = cls.objects.select_related("upstream")
        return rows.filter(Q(ends=None) | Q(ends__gt=now()))
