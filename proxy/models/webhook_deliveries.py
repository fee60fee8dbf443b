"""The outbox of events, and their deliveries to webhooks and mail addresses."""

from typing import Final

from django.db import models

from .setup.webhooks import Webhook

MAX_ANSWER: Final = 500
"""Characters of a receiver's response that are stored."""


class WebhookEvent(models.Model):
    """An event that has at least one receiver, stored in the transaction of the change."""

    id = models.CharField(max_length=40, primary_key=True)  # "evt_" + ULID: the webhook-id
    type = models.CharField(max_length=40)
    team = models.CharField(max_length=64, blank=True)  # Team.ledger_id; empty: of no team
    created = models.DateTimeField(db_index=True)
    # The JSON body: each attempt sends the same bytes.
    body = models.TextField()

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


class DeliveryState(models.TextChoices):
    """The states of a delivery: waiting -> delivered or failed. Sending again makes it wait."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"


class WebhookDelivery(models.Model):
    """One event for one receiver: a webhook or a mail address, with the result of its last attempt.

    An attempt claims the row by moving ``due`` into the future; if the process dies, the row is
    due again then.
    """

    event = models.ForeignKey(WebhookEvent, on_delete=models.CASCADE, related_name="deliveries")
    webhook = models.ForeignKey(
        Webhook, null=True, on_delete=models.CASCADE, related_name="deliveries"
    )
    email = models.EmailField(blank=True)  # empty: the receiver is the webhook
    state = models.CharField(
        max_length=9, choices=DeliveryState.choices, default=DeliveryState.WAITING
    )
    attempts = models.PositiveSmallIntegerField(default=0)
    due = models.DateTimeField()  # time of the next attempt of a waiting delivery
    attempted = models.DateTimeField(null=True)  # time of the last attempt; null: there was none
    # HTTP status of the last attempt; null: there was no response.
    status = models.PositiveSmallIntegerField(null=True)
    answer = models.CharField(max_length=MAX_ANSWER, blank=True)  # start of the last response
    error = models.CharField(max_length=300, blank=True)  # why the last attempt failed

    class Meta:
        verbose_name_plural = "webhook deliveries"
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["state", "due"], name="webhookdelivery_due"),
            models.Index(fields=["webhook", "id"], name="webhookdelivery_webhook"),
        ]

    def __str__(self) -> str:
        return f"{self.event_id} to {self.webhook or self.email}"


class UpstreamErrorClass(models.Model):
    """A class of errors that an upstream has shown, and when it did so last."""

    upstream = models.CharField(max_length=64)
    error = models.CharField(max_length=60)
    last_seen = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["upstream", "error"], name="upstreamerrorclass_once")
        ]

    def __str__(self) -> str:
        return f"{self.upstream}: {self.error}"
