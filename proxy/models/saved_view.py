"""Saved filters of the request list."""

from django.conf import settings
from django.db import models


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
