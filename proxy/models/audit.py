"""The audit log: who changed, read, exported or stopped what, when and from where."""

from collections.abc import Sequence
from typing import Final

from django.db import models
from django.utils.functional import cached_property
from django.utils.timezone import now

from .ledger_names import EntryNames, LedgerNames, person_ids


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


PERSONS: Final = (ActorKind.USER, ActorKind.KEY)
"""The actors whose ``user`` is the id of a person."""
MAX_DETAIL: Final = 500
MAX_REASON: Final = 500


class AuditEntry(models.Model):
    """One entry of the audit log.

    The entry has no foreign keys, so it stays when the user or the object is deleted. The teams and
    persons whom permissions depend on are ids of the ledger, see ``ledger_names``.
    No page and no API changes or deletes an entry; entries older than the log's retention are
    deleted with the daily purge.
    """

    created = models.DateTimeField(default=now)
    action = models.CharField(max_length=16, choices=Action.choices)
    actor_kind = models.CharField(max_length=8, choices=ActorKind.choices)
    # Person.pk of the signed-in user or of the user of the key; of a command, the name of the
    # operating-system user.
    user = models.CharField(max_length=150, blank=True)
    # "team/name" of the gateway key with which a request was sent; empty for other actors.
    key = models.CharField(max_length=140, blank=True)
    command = models.CharField(max_length=64, blank=True)  # name of the manage.py command
    address = models.CharField(max_length=45, blank=True)  # address of the client; empty: local
    model = models.CharField(max_length=40, blank=True)  # kind of the object, such as "team"
    object_id = models.CharField(max_length=64, blank=True)
    object_name = models.CharField(max_length=200, blank=True)
    # Team.ledger_id of the object; empty: no single team
    team = models.CharField(max_length=64, blank=True)
    # Person.pk of the user whose data was read; empty for other actions.
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
        user = self.names.user
        if self.actor_kind == ActorKind.KEY:
            return f"key {self.key}" + (f" of {user}" if user else "")
        if self.actor_kind == ActorKind.COMMAND:
            return f"manage.py {self.command}" + (f" by {user}" if user else "")
        return user or "gateway"

    @cached_property
    def names(self) -> EntryNames:
        """The names that are shown; ``with_names`` looks up those of many entries."""
        self.load_names([self], LedgerNames())
        names: EntryNames = self.__dict__["names"]
        return names

    @staticmethod
    def load_names(entries: "Sequence[AuditEntry]", names: LedgerNames) -> None:
        teams = names.teams.load(entry.team for entry in entries)
        people = (ident for entry in entries for ident in (entry.user, entry.subject))
        persons = names.persons.load(people)
        for entry in entries:
            is_person = entry.actor_kind in PERSONS
            user = persons[entry.user] if is_person else entry.user
            entry.__dict__["names"] = EntryNames(teams[entry.team], user, persons[entry.subject])

    @classmethod
    def acted_by(cls, name: str) -> models.Q:
        """Match the entries that show this name as who acted."""
        persons = models.Q(actor_kind__in=PERSONS, user__in=person_ids(name))
        return persons | (~models.Q(actor_kind__in=PERSONS) & models.Q(user=name))
