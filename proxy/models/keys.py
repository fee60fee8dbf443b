"""Teams and gateway keys: who may call."""

from datetime import timedelta
from typing import Any, Self

from django.conf import settings
from django.db import models, transaction
from django.utils.timezone import now

from proxy.secrets import digest_of, new_secret, prefix_of

from . import rules


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
    digest = models.BinaryField(max_length=32, unique=True, editable=False)
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

    @classmethod
    def issue(cls, team: Team, name: str, **fields: Any) -> "tuple[ApiKey, str]":
        """Make a key with a new secret, which is returned this once and never stored."""
        secret = new_secret()
        fields.setdefault("scopes", [Scope.MESSAGES.value])
        key = cls.objects.create(
            team=team,
            name=name,
            prefix=prefix_of(secret),
            digest=digest_of(secret),
            **fields,
        )
        return key, secret

    @transaction.atomic
    def rotate(self, overlap: timedelta) -> tuple[Self, str]:
        """Give this key a new secret; the old one goes on as a key of its own for a while.

        Name, history, limits and budgets stay here, and both count on them. Returns the retiring
        key and the new secret, shown this once.
        """
        ends = now() + overlap
        old = {"prefix": self.prefix, "digest": bytes(self.digest)}
        secret = new_secret()
        self.prefix, self.digest = prefix_of(secret), digest_of(secret)
        self.save(update_fields=["prefix", "digest"])
        retiring = type(self).objects.create(
            team=self.team,
            name=f"{self.name[:42]}-until-{ends:%Y%m%d-%H%M%S}",
            expires=min(ends, self.expires) if self.expires else ends,
            revoked=self.revoked,
            successor=self,
            **{name: getattr(self, name) for name in KEPT_BY_ROTATION},
            **old,
        )
        return retiring, secret

    def revoke(self) -> bool:
        """End this key for good; False where that was done before."""
        if not type(self).objects.filter(pk=self.pk, revoked=None).exists():
            return False
        self.revoked = now()
        self.save(update_fields=["revoked"])
        return True


KEPT_BY_ROTATION = ("user", "scopes", "models_allowed", "limits", "ip_allow", "options")
