"""Teams and gateway keys, with which clients authenticate."""

from datetime import datetime, timedelta
from typing import Any, Self

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models, transaction
from django.db.models.signals import pre_delete
from django.utils.timezone import now

from proxy.models.ledger_names import NameKind, keep_name, new_team_id
from proxy.secrets import digest_of, new_secret, prefix_of

from .columns import (
    METADATA_ONLY,
    Limits,
    MemberKeys,
    Model,
    Network,
    Options,
    ScopeName,
    TypedJSON,
)

Stored = dict[str, Any]
"""The values of the columns ``prefix`` and ``digest`` for one secret."""


class Store(models.TextChoices):
    FULL = "full"  # store request, raw stream and response until their retention ends
    METADATA = "metadata"  # store only the ledger row: counts, times, outcome; no content


class Team(models.Model):
    """A group of keys with common limits, budgets and storage rules."""

    name = models.SlugField(max_length=64, unique=True)
    # The team in the rows of the ledger, see ``ledger_names``: it stays when the name changes.
    ledger_id = models.CharField(max_length=64, unique=True, default=new_team_id, editable=False)
    store = models.CharField(max_length=8, choices=Store.choices, default=Store.FULL)
    retention_days = models.PositiveIntegerField(
        default=90,
        validators=[MinValueValidator(1)],
        help_text="Transcripts older than this are deleted; the rows of the requests stay.",
    )
    models_allowed = TypedJSON(
        list[Model],
        default=list,
        verbose_name="allowed models",
        help_text="Names or globs such as claude-*; empty: all models with a route.",
    )
    limits = TypedJSON(Limits, help_text="For all its keys together; empty: no limit.")
    member_keys = TypedJSON(
        MemberKeys,
        verbose_name="keys of members",
        help_text="Limits of the keys that members make; without a count, they make none.",
    )
    # The team comes from bridge.toml, so it is read-only.
    managed = models.BooleanField(default=False, editable=False)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                name="team_retention_days", condition=models.Q(retention_days__gte=1)
            )
        ]

    def __str__(self) -> str:
        return self.name


class Scope(models.TextChoices):
    """What a key may do; ``proxy.permissions`` defines the rows that each scope covers."""

    MESSAGES = "messages", "may call models"
    REPORTS = "reports", "may read the team's usage and requests, as reports:read"
    REPORTS_READ = "reports:read", "may read the team's usage and requests"
    TRANSCRIPTS_READ = "transcripts:read", "may also read the team's conversations"
    KEYS_WRITE = "keys:write", "may read and write the team's keys"
    CONFIG_WRITE = "config:write", "may read and write teams, routes, budgets, prices, upstreams"
    ADMIN = "admin", "may read everything, and write keys, users and the configuration"


class ApiKey(models.Model):
    """A gateway key. Its secret is shown once and not stored; only its HMAC digest is stored."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="keys")
    # null: the key belongs to the team as a whole
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL
    )
    name = models.SlugField(max_length=64)
    # The start of the secret for display, such as "sk-br-AbCd1234".
    prefix = models.CharField(max_length=16, editable=False)
    # null: the key has no secret yet, so no client can use it
    digest = models.BinaryField(max_length=32, unique=True, null=True, editable=False)
    scopes = TypedJSON(list[ScopeName], default=list, blank=False, help_text="What the key may do.")
    models_allowed = TypedJSON(
        list[Model],
        default=list,
        verbose_name="allowed models",
        help_text="Names or globs such as claude-*; empty: all models of the team.",
    )
    limits = TypedJSON(Limits, help_text="In addition to those of the team; empty: none.")
    ip_allow = TypedJSON(
        list[Network],
        default=list,
        verbose_name="networks",
        help_text="Allowed client networks such as 10.0.0.0/8; empty: all.",
    )
    options = TypedJSON(Options)
    managed = models.BooleanField(default=False, editable=False)
    created = models.DateTimeField(auto_now_add=True)
    expires = models.DateTimeField(null=True, blank=True)  # null: the key does not expire
    revoked = models.DateTimeField(null=True, blank=True)  # null: the key is not revoked
    # Revoked because bridge.toml no longer has it; valid again when the file has it again.
    dropped = models.BooleanField(default=False, editable=False)
    last_used = models.DateTimeField(null=True, editable=False)  # null: the key was never used
    # Set if this row has the replaced secret of a rotated key: that key, for budgets and limits.
    successor = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        editable=False,
        on_delete=models.CASCADE,
        related_name="retiring",
    )

    class Meta:
        verbose_name = "key"
        ordering = ["team__name", "name"]
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="apikey_team_name")]

    def __str__(self) -> str:
        return f"{self.team}/{self.name}"

    @property
    def metadata_only(self) -> bool:
        """Whether no content of this key's requests is stored, even if the team stores content."""
        return bool(self.options.get("store") == METADATA_ONLY)

    @property
    def stored_secret(self) -> Stored:
        """Return the columns of the secret; empty if the key has no valid secret.

        A key with an empty prefix has no valid secret, even if it has a digest: earlier versions
        stored the digest of a guessable text for such keys, and such rows may still come from an
        older gateway or a restored backup.
        """
        if self.digest is None or not self.prefix:
            return {}
        return {"prefix": self.prefix, "digest": bytes(self.digest)}

    @property
    def has_secret(self) -> bool:
        return bool(self.stored_secret)

    @classmethod
    def issue(cls, team: Team, name: str, **fields: Any) -> "tuple[ApiKey, str]":
        """Create a key; return it with its new secret, which is not stored."""
        secret = new_secret()
        fields.setdefault("scopes", [Scope.MESSAGES.value])
        key = cls.objects.create(team=team, name=name, **secret_columns(secret), **fields)
        return key, secret

    def give_secret(self) -> str:
        """Replace the secret of this key; return the new secret, which is not stored."""
        secret = new_secret()
        stored = secret_columns(secret)
        self.prefix, self.digest = stored["prefix"], stored["digest"]
        self.save(update_fields=list(stored))
        return secret

    @transaction.atomic
    def rotate(self, overlap: timedelta) -> tuple[Self | None, str]:
        """Give this key a new secret; the old secret stays valid for ``overlap`` as a separate key.

        Both secrets share the limits and budgets of this key. Returns the key that has the old
        secret (None if there was no old secret), and the new secret, which is not stored.
        """
        old, secret = self.stored_secret, self.give_secret()
        return self.retire(old, now() + overlap, self.revoked) if old else None, secret

    def retire(self, old: Stored, ends: datetime, revoked: datetime | None) -> Self:
        """Create a key for a replaced secret (its prefix and digest) that expires at ``ends``."""
        return type(self).objects.create(
            team=self.team,
            name=f"{self.name[:42]}-until-{ends:%Y%m%d-%H%M%S}",
            expires=min(ends, self.expires) if self.expires else ends,
            revoked=revoked,
            successor=self,
            **{name: getattr(self, name) for name in COPIED_BY_ROTATION},
            **old,
        )

    def revoke(self) -> bool:
        """Revoke this key, so that applying bridge.toml does not make it valid again.

        Returns False if the key was revoked before.
        """
        self.refresh_from_db(fields=["revoked", "dropped"])
        before = self.revoked is not None and self.revoked <= now()
        if before and not self.dropped:
            return False
        self.revoked, self.dropped = self.revoked if before else now(), False
        self.save(update_fields=["revoked", "dropped"])
        return True


def secret_columns(secret: str) -> Stored:
    """Return the values of the columns ``prefix`` and ``digest`` for a secret."""
    return {"prefix": prefix_of(secret), "digest": digest_of(secret)}


NO_SECRET = models.Q(digest=None) | models.Q(prefix="")
"""Matches keys without a valid secret, see ``stored_secret``."""

COPIED_BY_ROTATION = ("user", "scopes", "models_allowed", "limits", "ip_allow", "options")


def _keep_team_name(instance: Team, **_: Any) -> None:
    keep_name(NameKind.TEAM, instance.ledger_id, instance.name)


def _keep_key_name(instance: ApiKey, **_: Any) -> None:
    keep_name(NameKind.KEY, instance.pk, instance.name)


pre_delete.connect(_keep_team_name, sender=Team, dispatch_uid="team-name")
pre_delete.connect(_keep_key_name, sender=ApiKey, dispatch_uid="key-name")
