"""Accounts at OpenID Connect providers, and the Django users to whom the accounts belong."""

from django.conf import settings
from django.db import models


class Identity(models.Model):
    """A user's account at a provider: issuer and subject of its ID token.

    Both stay the same when the account's name or e-mail address changes.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identities"
    )
    issuer = models.CharField(max_length=300)
    subject = models.CharField(max_length=255)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "identities"
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="identity_once")]

    def __str__(self) -> str:
        return f"{self.subject} of {self.issuer}"
