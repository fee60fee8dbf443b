"""Protocol names that clients and upstreams send, and policies for sending names to upstreams.

Such names are beta names, body fields, block types, roles, client versions and event types.
"""

import fnmatch
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from .setup.upstreams import Upstream


class DriftKind(models.TextChoices):
    BETA = "beta", "beta name"
    FIELD = "field", "body field"
    BLOCK = "block", "block type"
    ROLE = "role", "role"
    CLIENT = "client", "client version"
    EVENT = "event", "unknown upstream event"


class Drift(models.Model):
    """A protocol name and the number of requests that had it, updated every few seconds."""

    kind = models.CharField(max_length=8, choices=DriftKind)
    name = models.CharField(max_length=100)
    # null: this version has no list of known names of this kind
    known = models.BooleanField(null=True)
    requests = models.BigIntegerField(default=0)
    first_seen = models.DateTimeField(db_index=True)
    last_seen = models.DateTimeField()
    first_request = models.CharField(max_length=30)  # id of a request, whose row may be deleted

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
    DROP = "drop", "drop, with a note"
    REFUSE = "refuse", "reject the request"


NEEDED = {
    PolicyKind.FIELD.value: frozenset({"model", "messages", "max_tokens", "stream"}),
    PolicyKind.BLOCK.value: frozenset({"text", "tool_use", "tool_result"}),
    PolicyKind.ROLE.value: frozenset({"user", "assistant"}),
}
"""Names that a policy cannot drop or refuse, as requests need them; globs do not match them."""


class UpstreamPolicy(models.Model):
    """What happens to a protocol name in requests to one upstream, or to all upstreams.

    The first matching policy applies. Without a matching policy, a name is sent if the API format
    of the upstream supports it.
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
            raise ValidationError(
                {"name": f"requests need {self.name!r}: it cannot be dropped or refused"}
            )
        if self.kind == PolicyKind.CLIENT and self.action == PolicyAction.DROP:
            raise ValidationError({"action": "a client version can be passed on or refused only"})

    def covers(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.name)

    def as_rule(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "action": self.action}
