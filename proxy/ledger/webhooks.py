"""Store events in the outbox, one delivery for each receiver, in the transaction of the change.

The audit log has an entry for each revocation, pause and stop by the admin, the API, a command or
bridge.toml: its event is stored in the transaction of the entry.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Q
from django.db.models.signals import post_save
from django.utils.timezone import now

from proxy.audit_log import record
from proxy.ids import new_ulid
from proxy.models import (
    Action,
    AuditEntry,
    DeliveryState,
    EventType,
    Webhook,
    WebhookDelivery,
    WebhookEvent,
)
from proxy.models.ledger_names import LedgerNames
from proxy.models.setup.webhooks import TEST_EVENT
from proxy.secrets import Secret
from proxy.times import rfc3339

KEEP_DAYS: Final = 30
"""Days after which an event is deleted with its deliveries."""
KEEP_EVENTS: Final = 20_000
"""Maximum stored events; the oldest are deleted first."""
BATCH: Final = 500
OVERLAP: Final = timedelta(hours=24)
"""How long the old secret of a webhook signs after a rotation."""


def record_event(
    event_type: str, *, team: str, data: Mapping[str, Any], emails: Iterable[str] = ()
) -> WebhookEvent | None:
    """Store an event and its deliveries; return None if it has no receiver.

    ``team``: the ledger id of the event's team, "" if it belongs to none. A webhook
    of a team gets only the events of this team, a webhook without a team gets all events.
    ``emails``: addresses that get a mail too.
    """
    webhooks = Webhook.objects.filter(Q(team=None) | Q(team__ledger_id=team), enabled=True)
    receivers: list[dict[str, Any]] = [
        *({"webhook": one} for one in webhooks if one.wants(event_type)),
        *({"email": address} for address in dict.fromkeys(emails)),
    ]
    return _store(event_type, team, data, receivers) if receivers else None


@transaction.atomic
def record_test_event(webhook: Webhook) -> WebhookDelivery:
    """Store an event for this webhook alone, which the current actor sends to test it."""
    entry = record(Action.TEST, webhook, detail="sent a test event")
    data = {"webhook": webhook.name, "actor": entry.actor}
    event = _store(TEST_EVENT, entry.team, data, [{"webhook": webhook}])
    return event.deliveries.get()


def _store(
    event_type: str, team: str, data: Mapping[str, Any], receivers: Iterable[Mapping[str, Any]]
) -> WebhookEvent:
    at = now()
    name = LedgerNames().teams.load([team])[team] or None
    body = {"type": event_type, "timestamp": rfc3339(at), "data": {"team": name, **data}}
    event = WebhookEvent.objects.create(
        id=f"evt_{new_ulid()}", type=event_type, team=team, created=at, body=json.dumps(body)
    )
    WebhookDelivery.objects.bulk_create(
        WebhookDelivery(event=event, due=at, **receiver) for receiver in receivers
    )
    return event


@transaction.atomic
def send_again(delivery: WebhookDelivery) -> None:
    """Make the delivery due now, with a new series of attempts and the same event id."""
    delivery.state, delivery.due, delivery.attempts = DeliveryState.WAITING, now(), 0
    delivery.save(update_fields=["state", "due", "attempts"])
    record(Action.TEST, delivery, detail="sent an event again", team=delivery.event.team)


def rotate_secret(webhook: Webhook) -> Secret:
    """Give the webhook a new secret and return it; the old one signs too for ``OVERLAP``."""
    webhook.previous_secret, webhook.previous_until = webhook.secret, now() + OVERLAP
    secret = webhook.give_secret()
    webhook.save(update_fields=["secret", "previous_secret", "previous_until"])
    return secret


def prune_events(at: datetime, keep: int = KEEP_EVENTS) -> int:
    """Delete old events, and all but the newest ``keep``; return how many."""
    newest = WebhookEvent.objects.order_by("-id").values_list("id", flat=True)
    last_kept = newest[keep - 1 : keep].first() or ""
    old = Q(created__lt=at - timedelta(days=KEEP_DAYS)) | Q(id__lt=last_kept)
    deleted = 0
    while ids := list(WebhookEvent.objects.filter(old).values_list("id", flat=True)[:BATCH]):
        WebhookEvent.objects.filter(id__in=ids).delete()
        deleted += len(ids)
    return deleted


EVENTS: Final[Mapping[tuple[str, str], EventType]] = {
    (Action.REVOKE, "key"): EventType.KEY_REVOKED,
    (Action.STOP, "key"): EventType.REQUESTS_STOPPED,
    (Action.STOP, "team"): EventType.REQUESTS_STOPPED,
    (Action.STOP, "upstream"): EventType.REQUESTS_STOPPED,
    (Action.ADD, "pause"): EventType.UPSTREAM_PAUSED,
    (Action.DELETE, "pause"): EventType.UPSTREAM_RESUMED,
}
"""(action, kind of object) of an entry -> type of its event."""


def event_type_of(entry: AuditEntry) -> EventType | None:
    """Return the type of the entry's event; None if it has none."""
    if entry.model == "upstream" and entry.changes.get("enabled", {}).get("after") is False:
        return EventType.UPSTREAM_DISABLED
    return EVENTS.get((entry.action, entry.model))


def _record(instance: AuditEntry, created: bool = False, **_: Any) -> None:
    event_type = event_type_of(instance)
    if not created or event_type is None:
        return
    data = {
        "kind": instance.model,
        "id": instance.object_id,
        "name": instance.object_name,
        "actor": instance.actor,
        "changes": instance.changes,
    }
    record_event(event_type, team=instance.team, data=data)


def connect() -> None:
    """Connect the signal. ``AppConfig.ready`` calls it once."""
    post_save.connect(_record, sender=AuditEntry, dispatch_uid="webhook-audit-entry")
