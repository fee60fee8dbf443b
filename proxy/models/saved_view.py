"""Saved filters of the request list, and saved reports."""

from django.conf import settings
from django.db import models

from .setup.keys import Team


class SavedView(models.Model):
    """A filter of the request list that one user has saved under a name."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_views"
    )
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=2000, blank=True)  # query string of the request list's URL
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="savedview_user_name")]

    def __str__(self) -> str:
        return self.name


class SavedReport(models.Model):
    """A report with its parameters under a name: of one user, or of a team."""

    # The name is unique in the gateway, because a path contains it.
    name = models.SlugField(max_length=64, unique=True)
    report = models.CharField(max_length=16)  # a key of ``proxy.reports.saved.reports.REPORTS``
    # The query parameters of the report; several values are a list.
    query = models.JSONField(default=dict, blank=True)
    # Who sees and changes the report; null: the team does.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE
    )
    # null: the report belongs to the user alone
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                name="savedreport_one_owner",
                condition=models.Q(user=None, team__isnull=False)
                | models.Q(user__isnull=False, team=None),
            )
        ]

    def __str__(self) -> str:
        return self.name
