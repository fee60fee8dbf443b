"""Budgets: how much money a team, key or user may spend in a period."""

import zoneinfo
from collections.abc import Iterator
from decimal import Decimal
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import models

from .keys import ApiKey, Team

ONE_OWNER = "a budget belongs to exactly one team, key or user"


class Period(models.TextChoices):
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class Budget(models.Model):
    """A ceiling for one owner (exactly one of team, key, user) and one kind of period."""

    team = models.ForeignKey(
        Team, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets"
    )
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.CASCADE)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE
    )
    usd = models.DecimalField(max_digits=14, decimal_places=6)
    period = models.CharField(max_length=8, choices=Period.choices, default=Period.MONTH)
    zone = models.CharField(max_length=64, default="UTC")  # IANA name; where the period turns
    hard = models.BooleanField(default=True, help_text="Off: only a warning is raised.")
    webhook = models.CharField(
        max_length=500, blank=True, help_text="https URL that is told at 80 % and at 100 %."
    )
    webhook_secret = models.JSONField(
        default=dict,
        blank=True,
        help_text='Signs what is sent: {"env": "NAME"} or {"file": "/path"}.',
    )
    emails = models.JSONField(
        default=list, blank=True, help_text='Told as well: ["ops@example.com"].'
    )
    managed = models.BooleanField(default=False, editable=False)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                name="budget_one_owner",
                condition=(
                    models.Q(team__isnull=False, key=None, user=None)
                    | models.Q(team=None, key__isnull=False, user=None)
                    | models.Q(team=None, key=None, user__isnull=False)
                ),
                violation_error_message=ONE_OWNER,
            )
        ]

    def __str__(self) -> str:
        return f"{Decimal(self.usd).normalize():f} USD a {self.period}"

    @property
    def owner(self) -> str:
        """Whose money it is, as people are told: ``team platform``, ``key platform/ci``."""
        if self.team is not None:
            return f"team {self.team}"
        return f"key {self.key}" if self.key is not None else f"user {self.user}"

    @property
    def key_ids(self) -> tuple[int, ...]:
        """The keys that spend a key's budget: itself, and its old secrets after a rotation."""
        if self.key is None:
            return ()
        return (self.key.pk, *(retiring.pk for retiring in self.key.retiring.all()))

    def clean(self) -> None:
        """What a form and bridge.toml both refuse: a zone, an address or a secret that is wrong."""
        for _, told in self.faults():
            raise ValidationError(told)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Each field that is wrong, and why."""
        if self.usd is not None and self.usd < 0:
            yield "usd", "a budget is not negative"
        try:
            zoneinfo.ZoneInfo(self.zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            yield "zone", f"no such time zone: {self.zone!r}"
        if self.webhook:
            yield from self._faults_of_webhook()
        if not isinstance(self.emails, list):
            yield "emails", "emails is a list of addresses"
            return
        for address in self.emails:
            try:
                validate_email(str(address))  # in a form it may be anything
            except ValidationError as wrong:
                yield "emails", " ".join(wrong.messages)

    def _faults_of_webhook(self) -> Iterator[tuple[str, str]]:
        try:
            parts = urlsplit(self.webhook)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host, parts = None, urlsplit("")
        if parts.scheme != "https" or not host or "@" in parts.netloc:
            told = f"webhook {self.webhook!r} must be an https URL without user and password"
            yield "webhook", told
        reference = self.webhook_secret
        if not isinstance(reference, dict) or (
            len(reference) != 1 or not set(reference) <= {"env", "file"}
        ):
            told = 'a webhook needs webhook_secret: {"env": "NAME"} or {"file": "/path"}'
            yield "webhook_secret", told


class BudgetNotice(models.Model):
    """One threshold of one budget was reached in one period: told once, by whoever was first."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="notices")
    start = models.DateTimeField()  # of the period
    threshold = models.PositiveSmallIntegerField()  # percent
    used_nanousd = models.BigIntegerField(default=0)  # when it was reached
    created = models.DateTimeField(auto_now_add=True)
    claimed = models.DateTimeField(null=True)  # null: nobody is sending it
    tries = models.PositiveSmallIntegerField(default=0)
    sent = models.DateTimeField(null=True)  # null: not yet, or never (see ``error``)
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["budget", "start", "threshold"], name="budget_notice_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.threshold} % of {self.budget}"
