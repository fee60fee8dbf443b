"""Teams and gateway keys: who may call."""

from datetime import datetime, timedelta
from typing import Any, Self

from django.conf import settings
from django.db import models, transaction
from django.utils.timezone import now

from proxy.secrets import digest_of, new_secret, prefix_of

from . import rules

Stored = dict[str, Any]
"""The columns ``prefix`` and ``digest`` of one secret."""


class Store(models.TextChoices):
    FULL = "full"  # bodies, raw stream and answer are kept until retention ends
    METADATA = "metadata"  # only the row: counts, times, outcome; no word of the conversation


class Team(models.Model):
    """A group of keys with common limits, budgets and rules on what is kept."""

    name = models.SlugField(max_length=64, unique=True)
    store = models.CharField(max_length=8, choices=Store.choices, default=Store.FULL)
    retention_days = models.PositiveIntegerField(
        default=90, help_text="Bodies older than this are pruned; the rows stay."
    )
    models_allowed = models.JSONField(
        default=list, blank=True, help_text="Model globs; empty: every model that has a route."
    )
    limits = models.JSONField(
        default=dict, blank=True, help_text='{"rpm": 600, "tpm": 2000000, "concurrency": 100}'
    )
    managed = models.BooleanField(default=False, editable=False)  # from bridge.toml: read-only here
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """What a form refuses, as bridge.toml does."""
        rules.check(self)


class Scope(models.TextChoices):
    MESSAGES = "messages"
    REPORTS = "reports"
    ADMIN = "admin"


class ApiKey(models.Model):
    """A gateway key. The secret itself is shown once and never stored, only its HMAC digest."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="keys")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL
    )  # null: the key belongs to the team as a whole
    name = models.SlugField(max_length=64)
    prefix = models.CharField(max_length=16, editable=False)  # what may be shown: "sk-br-AbCd1234"
    digest = models.BinaryField(
        max_length=32, unique=True, null=True, editable=False
    )  # null: no secret yet, which is the digest of no text
    scopes = models.JSONField(default=list, help_text="Of messages, reports, admin.")
    models_allowed = models.JSONField(default=list, blank=True)
    limits = models.JSONField(default=dict, blank=True)
    ip_allow = models.JSONField(
        default=list, blank=True, help_text='Networks, such as "10.0.0.0/8"; empty: from anywhere.'
    )
    options = models.JSONField(
        default=dict, blank=True, help_text='{"strict": true, "events": ["metadata", "blocks"]}'
    )
    managed = models.BooleanField(default=False, editable=False)
    created = models.DateTimeField(auto_now_add=True)
    expires = models.DateTimeField(null=True, blank=True)  # null: never
    revoked = models.DateTimeField(null=True, blank=True)  # null: valid
    dropped = models.BooleanField(
        default=False, editable=False
    )  # revoked only since bridge.toml no longer names it: the file may name it again
    last_used = models.DateTimeField(null=True, editable=False)  # null: never used
    successor = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        editable=False,
        on_delete=models.CASCADE,
        related_name="retiring",
    )  # of a rotated secret that goes on for a while: the key whose money and limits it uses

    class Meta:
        verbose_name = "key"
        ordering = ["team__name", "name"]
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="apikey_team_name")]

    def __str__(self) -> str:
        return f"{self.team}/{self.name}"

    def clean(self) -> None:
        """What a form refuses, as bridge.toml does."""
        rules.check(self)

    @property
    def keeps_no_words(self) -> bool:
        """Whether only rows are kept of its requests, whatever its team keeps."""
        return bool(self.options.get("store") == rules.KEEPS_NO_WORDS)

    @property
    def stored_secret(self) -> Stored:
        """The columns that hold the secret; empty where there is none that opens anything.

        A key with an empty prefix has none, whatever its digest: earlier versions stored the
        digest of a text that can be guessed, and an older node or a backup may still do so.
        """
        if self.digest is None or not self.prefix:
            return {}
        return {"prefix": self.prefix, "digest": bytes(self.digest)}

    @property
    def has_secret(self) -> bool:
        return bool(self.stored_secret)

    @classmethod
    def issue(cls, team: Team, name: str, **fields: Any) -> "tuple[ApiKey, str]":
        """Make a key with a new secret, which is returned this once and never stored."""
        secret = new_secret()
        fields.setdefault("scopes", [Scope.MESSAGES.value])
        key = cls.objects.create(team=team, name=name, **stored_of(secret), **fields)
        return key, secret

    def give_secret(self) -> str:
        """Replace the secret at once; the new one is returned this once and never stored."""
        secret = new_secret()
        stored = stored_of(secret)
        self.prefix, self.digest = stored["prefix"], stored["digest"]
        self.save(update_fields=list(stored))
        return secret

    @transaction.atomic
    def rotate(self, overlap: timedelta) -> tuple[Self | None, str]:
        """Give this key a new secret; the old one goes on as a key of its own for a while.

        Name, history, limits and budgets stay here, and both count on them. Returns the retiring
        key (None where there was no secret yet) and the new secret, shown this once.
        """
        old, secret = self.stored_secret, self.give_secret()
        return self.retire(old, now() + overlap, self.revoked) if old else None, secret

    def retire(self, old: Stored, ends: datetime, revoked: datetime | None) -> Self:
        """Keep a replaced secret (its prefix and digest) as a key of its own that ends then."""
        return type(self).objects.create(
            team=self.team,
            name=f"{self.name[:42]}-until-{ends:%Y%m%d-%H%M%S}",
            expires=min(ends, self.expires) if self.expires else ends,
            revoked=revoked,
            successor=self,
            **{name: getattr(self, name) for name in KEPT_BY_ROTATION},
            **old,
        )

    def revoke(self) -> bool:
        """End this key for good, whatever bridge.toml says; False where that was done before."""
        self.refresh_from_db(fields=["revoked", "dropped"])
        before = self.revoked is not None and self.revoked <= now()
        if before and not self.dropped:
            return False
        self.revoked, self.dropped = self.revoked if before else now(), False
        self.save(update_fields=["revoked", "dropped"])
        return True


def stored_of(secret: str) -> Stored:
    """Return what a row holds of a secret, by its columns."""
    return {"prefix": prefix_of(secret), "digest": digest_of(secret)}


NO_SECRET = models.Q(digest=None) | models.Q(prefix="")
"""Of keys: those without a secret, as ``stored_secret`` decides."""

KEPT_BY_ROTATION = ("user", "scopes", "models_allowed", "limits", "ip_allow", "options")
