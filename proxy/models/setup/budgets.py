"""Budgets: how much money a team, key or user may spend in a day, week or month."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models

from proxy.models.ledger_names import person_id
from proxy.models.rollups import UsageQuarterHour

from .columns import CoveredModels, TypedJSON, check_addresses, check_zone, matches_any, shown
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
    usd = models.DecimalField(
        max_digits=14, decimal_places=6, validators=[MinValueValidator(0)], verbose_name="limit, $"
    )
    period = models.CharField(max_length=8, choices=Period.choices, default=Period.MONTH)
    zone = models.CharField(
        max_length=64,
        default="UTC",
        validators=[check_zone],
        verbose_name="time zone",
        help_text="IANA name, such as Europe/Berlin: a period starts at midnight there.",
    )
    models_covered = TypedJSON(
        CoveredModels,
        default=list,
        verbose_name="models",
        help_text="Names or globs of the models whose requests count; empty: all models.",
    )
    hard = models.BooleanField(
        default=True,
        verbose_name="reject requests when spent",
        help_text="Off: only a warning; requests continue.",
    )
    # get a mail at 80 % and 100 %
    emails = TypedJSON(list[str], checks=(check_addresses,), default=list)
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
            ),
            models.CheckConstraint(name="budget_usd", condition=models.Q(usd__gte=0)),
        ]

    def __str__(self) -> str:
        amount = Decimal(self.usd)
        text = f"{amount:,.2f}" if amount == round(amount, 2) else f"{amount.normalize():f}"
        return f"${text} a {self.period}{self.models_text}"

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

    @property
    def models_text(self) -> str:
        """Return the covered models for display after the limit: " for claude-opus-*", or ""."""
        return f" for {shown(self.models_covered)}" if self.models_covered else ""

    @property
    def is_of_owner(self) -> models.Q:
        """Return the condition for rows of usage of the budget's owner, for whatever model."""
        if self.team is not None:
            return models.Q(team=self.team.ledger_id)
        if self.key_id is not None:
            return models.Q(key_id__in=self.key_ids)
        return models.Q(user=person_id(self.user)) if self.user else models.Q(pk__in=())

    def sums_of_usage(self, start: datetime, end: datetime, *columns: str) -> list[int]:
        """Return the sum of each column of the usage that counts, from ``start`` to ``end``.

        Both are at a quarter hour. The databases have different globs, so Python matches the names.
        """
        rows = UsageQuarterHour.objects.filter(self.is_of_owner, start__gte=start, start__lt=end)
        sums = {f"sum_{column}": models.Sum(column, default=0) for column in columns}
        if not self.models_covered:
            return [int(each) for each in rows.aggregate(**sums).values()]
        by_model: models.QuerySet[Any, Any] = rows.order_by().values("model_requested")
        found = [
            each
            for each in by_model.annotate(**sums).iterator()
            if matches_any(each["model_requested"], self.models_covered)
        ]
        return [sum(int(each[name]) for each in found) for name in sums]


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
