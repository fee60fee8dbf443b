"""What a reader keeps of their way through the request list."""

from django.conf import settings
from django.db import models


class SavedView(models.Model):
    """A name for a filter of the request list, for one user. It shows what the list shows."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_views"
    )
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=2000, blank=True)  # as after the "?" of the list's address
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="savedview_user_name")]

    def __str__(self) -> str:
        return self.name
