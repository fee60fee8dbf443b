"""Notify webhooks of changes that the audit log records, however they came.

The audit log has an entry for each revocation, pause and stop by the admin, the API, a command or
bridge.toml. The event is stored in the transaction of the entry, which is that of the change.
"""

from collections.abc import Mapping
from typing import Any, Final

from django.db.models.signals import post_save

from proxy.models import Action, AuditEntry, EventType

from .outbox import record_event

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
