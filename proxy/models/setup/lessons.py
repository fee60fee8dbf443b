"""What upstreams' refusals have shown about their models, for all processes of the gateway.

A row is one change that the request bodies for a model need (``translator.request.body_edits``).
Each process reads the rows into memory and applies them before it sends a request; see
``proxy.gateway.upstream.model_memory``.
"""

import datetime as dt
from typing import Any, Final, Self

from django.db import models
from django.db.models.signals import post_save
from django.utils.timezone import now

from .upstreams import Upstream

REMEMBERED: Final = dt.timedelta(days=1)
"""How long a lesson counts, because the model behind a name may change."""
MAX_TEXT: Final = 200
"""Characters of a model's name, a value and the words; a longer name is not remembered."""


class ModelLesson(models.Model):
    """One change that request bodies for a model of an upstream need.

    ``words``: the upstream's error code, path or own words that show it, without a client's text.
    """

    upstream = models.ForeignKey(Upstream, on_delete=models.CASCADE, related_name="lessons")
    model = models.CharField(max_length=MAX_TEXT)
    edit = models.CharField(max_length=32)
    value = models.CharField(max_length=MAX_TEXT, blank=True, default="")
    words = models.CharField(max_length=MAX_TEXT, blank=True, default="")
    since = models.DateTimeField()

    class Meta:
        ordering = ["upstream", "model", "pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["upstream", "model", "edit", "value"], name="model_lesson_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.model}: {self.change}"

    @classmethod
    def current(cls) -> models.QuerySet[Self]:
        """Return the lessons that still count."""
        return cls.objects.filter(since__gt=now() - REMEMBERED)

    @property
    def change(self) -> str:
        return f"{self.edit.replace('_', ' ')} {self.value}".rstrip()


def _forget(instance: Upstream, created: bool, **_: Any) -> None:
    """Forget what was learnt of an upstream whose settings change: it may be another server."""
    if not created:
        ModelLesson.objects.filter(upstream=instance).delete()


post_save.connect(_forget, sender=Upstream, dispatch_uid="lessons-of-changed-upstream")
