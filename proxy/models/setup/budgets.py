"""Budgets: how much money a team, key or user may spend in a day, week or month."""

import zoneinfo
from collections.abc import Iterator
from decimal import Decimal

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
    """A spending limit of one owner (a team, a key or a user) for each day, week or month."""

    team = models.ForeignKey(
        Team, null=True, blank=True, on_delete=models.CASCADE, related_name="budgets"
    )
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.CASCADE)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE
    )
    usd = models.DecimalField(max_digits=14, decimal_places=6)
    period = models.CharField(max_length=8, choices=Period.choices, default=Period.MONTH)
    # IANA name of a time zone; periods begin at its midnight.
    zone = models.CharField(max_length=64, default="UTC")
    hard = models.BooleanField(default=True, help_text="Off: only a warning is raised.")
    emails = models.JSONField(
        default=list, blank=True, help_text='Get a mail at 80 % and 100 %: ["ops@example.com"].'
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
        """Return the owner for display: ``team platform``, ``key platform/ci``."""
        if self.team is not None:
            return f"team {self.team}"
        return f"key {self.key}" if self.key is not None else f"user {self.user}"

    @property
    def key_ids(self) -> tuple[int, ...]:
        """Return the ids of the keys whose cost counts: the key and its replaced, rotated secrets.

        A rotated secret is a separate key until it expires.
        """
        if self.key is None:
            return ()
        return (self.key.pk, *(retiring.pk for retiring in self.key.retiring.all()))

    def clean(self) -> None:
        """Raise ValidationError for the first invalid field, see ``field_errors``."""
        for _, message in self.field_errors():
            raise ValidationError(message)

    def field_errors(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each invalid field, with an error message."""
        if self.usd is not None and self.usd < 0:
            yield "usd", "a budget is not negative"
        try:
            zoneinfo.ZoneInfo(self.zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            yield "zone", f"no such time zone: {self.zone!r}"
        if not isinstance(self.emails, list):
            yield "emails", "emails is a list of addresses"
            return
        for address in self.emails:
            try:
                validate_email(str(address))  # the list may come from a form and contain any type
            except ValidationError as wrong:
                yield "emails", " ".join(wrong.messages)


class BudgetNotice(models.Model):
    """The cost of a period reached a threshold; the event for the receivers is created with it."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="notices")
    start = models.DateTimeField()  # start of the period
    threshold = models.PositiveSmallIntegerField()  # percent of the budget
    used_nanousd = models.BigIntegerField(default=0)  # cost when the threshold was reached
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["budget", "start", "threshold"], name="budget_notice_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.threshold} % of {self.budget}"
