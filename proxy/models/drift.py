"""What clients and upstreams say that is new, and what an upstream may be told of it."""

import fnmatch
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from .routes import Upstream


class DriftKind(models.TextChoices):
    BETA = "beta", "beta name"
    FIELD = "field", "body field"
    BLOCK = "block", "block type"
    ROLE = "role", "role"
    CLIENT = "client", "client version"
    EVENT = "event", "unknown upstream event"


class Drift(models.Model):
    """A name that was seen, from the first time on. Counted by requests, a few seconds behind."""

    kind = models.CharField(max_length=8, choices=DriftKind)
    name = models.CharField(max_length=100)
    known = models.BooleanField(null=True)  # null: this version judges no names of this kind
    requests = models.BigIntegerField(default=0)
    first_seen = models.DateTimeField(db_index=True)
    last_seen = models.DateTimeField()
    first_request = models.CharField(max_length=30)  # whose row, while there is one, tells more

    class Meta:
        ordering = ["-first_seen", "kind", "name"]
        verbose_name = "sighting"
        constraints = [models.UniqueConstraint(fields=["kind", "name"], name="drift_kind_name")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class PolicyKind(models.TextChoices):
    BETA = "beta", "beta name"
    FIELD = "field", "body field"
    BLOCK = "block", "block type"
    ROLE = "role", "role"
    CLIENT = "client", "client version"


class PolicyAction(models.TextChoices):
    PASS = "pass", "pass on"
    DROP = "drop", "leave out, with a note"
    REFUSE = "refuse", "refuse the request"


NEEDED = {
    PolicyKind.FIELD.value: frozenset({"model", "messages", "max_tokens", "stream"}),
    PolicyKind.BLOCK.value: frozenset({"text", "tool_use", "tool_result"}),
    PolicyKind.ROLE.value: frozenset({"user", "assistant"}),
}
"""What every conversation is made of: no rule leaves it out, and a glob passes it over."""


class UpstreamPolicy(models.Model):
    """What becomes of such a name on its way to one upstream, or to all.

    The first rule that fits counts, in their order; without one, what the dialect can carry passes.
    """

    upstream = models.ForeignKey(Upstream, null=True, blank=True, on_delete=models.CASCADE)
    position = models.PositiveIntegerField(default=0)
    kind = models.CharField(max_length=8, choices=PolicyKind)
    name = models.CharField(
        max_length=100, help_text="A name or a glob, such as context-1m-* or claude-cli 1.*"
    )
    action = models.CharField(max_length=8, choices=PolicyAction)

    class Meta:
        ordering = ["position", "pk"]
        verbose_name_plural = "upstream policies"

    def __str__(self) -> str:
        return f"{self.upstream or 'every upstream'}: {self.action} {self.kind} {self.name}"

    def clean(self) -> None:
        if self.name in NEEDED.get(self.kind, ()) and self.action != PolicyAction.PASS:
            raise ValidationError({"name": f"no request is one without {self.name!r}"})
        if self.kind == PolicyKind.CLIENT and self.action == PolicyAction.DROP:
            raise ValidationError({"action": "a client version is passed on or refused"})

    def covers(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.name)

    def as_rule(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "action": self.action}
