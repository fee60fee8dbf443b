"""The audit log: who changed, read, exported or stopped what, when and from where."""

from typing import Final

from django.db import models
from django.utils.timezone import now


class Action(models.TextChoices):
    """What an entry of the audit log records."""

    ADD = "add", "Added"
    CHANGE = "change", "Changed"
    DELETE = "delete", "Deleted"
    REVOKE = "revoke", "Revoked"
    ROTATE = "rotate", "Rotated"
    READ = "read", "Read a transcript"
    SEARCH = "search", "Searched transcripts"
    EXPORT = "export", "Exported"
    PURGE = "purge", "Purged"
    STOP = "stop", "Stopped requests"
    TEST = "test", "Tested"
    RUN = "run", "Ran a command"
    ERASE = "erase", "Erased a user"


class ActorKind(models.TextChoices):
    """The kinds of actors that an entry can name."""

    USER = "user", "User"
    KEY = "key", "Gateway key"
    COMMAND = "command", "Command"
    SYSTEM = "system", "The gateway itself"


MAX_DETAIL: Final = 500
MAX_REASON: Final = 500


class AuditEntry(models.Model):
    """One entry of the audit log.

    The entry has names instead of foreign keys, so it stays when the user or the object is deleted.
    No page and no API changes or deletes an entry; entries older than the log's retention are
    deleted with the daily purge.
    """

    created = models.DateTimeField(default=now)
    action = models.CharField(max_length=16, choices=Action.choices)
    actor_kind = models.CharField(max_length=8, choices=ActorKind.choices)
    # The signed-in user, the user of the key, or the operating-system user of the command.
    user = models.CharField(max_length=150, blank=True)
    # "team/name" of the gateway key with which a request was sent; empty for other actors.
    key = models.CharField(max_length=140, blank=True)
    command = models.CharField(max_length=64, blank=True)  # name of the manage.py command
    address = models.CharField(max_length=45, blank=True)  # address of the client; empty: local
    model = models.CharField(max_length=40, blank=True)  # kind of the object, such as "team"
    object_id = models.CharField(max_length=64, blank=True)
    object_name = models.CharField(max_length=200, blank=True)
    team = models.CharField(max_length=64, blank=True)  # the object's team; empty: no single team
    # The user whose data was read; empty for other actions.
    subject = models.CharField(max_length=150, blank=True)
    # {"field": {"before": ..., "after": ...}}; a secret is only {"changed": true}.
    changes = models.JSONField(default=dict, blank=True)
    detail = models.CharField(max_length=MAX_DETAIL, blank=True)
    reason = models.CharField(max_length=MAX_REASON, blank=True)  # why the transcript was read

    class Meta:
        verbose_name = "audit entry"
        verbose_name_plural = "audit log"
        ordering = ["-created", "-pk"]
        indexes = [
            models.Index(fields=["created", "id"], name="audit_created"),
            models.Index(fields=["action", "created"], name="audit_action"),
            models.Index(fields=["user", "created"], name="audit_user"),
            models.Index(fields=["subject", "created"], name="audit_subject"),
            models.Index(fields=["team", "created"], name="audit_team"),
            models.Index(fields=["object_id", "model", "created"], name="audit_object"),
        ]

    def __str__(self) -> str:
        return f"{self.get_action_display()}: {self.object_name or self.detail}"

    @property
    def actor(self) -> str:
        """Return the actor as text: the user, the key with its user, or the command."""
        if self.actor_kind == ActorKind.KEY:
            return f"key {self.key}" + (f" of {self.user}" if self.user else "")
        if self.actor_kind == ActorKind.COMMAND:
            return f"manage.py {self.command}" + (f" by {self.user}" if self.user else "")
        return self.user or "gateway"
