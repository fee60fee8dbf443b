"""The rows of the audit log as the API, the exports and the admin show them."""

from typing import Any, Final

from proxy.models import AuditEntry
from proxy.times import rfc3339

COLUMNS: Final = (
    "id", "created_at", "action", "actor", "actor_kind", "user", "key", "command", "address",
    "object_kind", "object_id", "object", "team", "subject", "changes", "detail", "reason",
)  # fmt: skip


def entry_row(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry with the field names of ``COLUMNS``."""
    return {
        "id": entry.pk,
        "created_at": rfc3339(entry.created),
        "action": entry.action,
        "actor": entry.actor,
        "actor_kind": entry.actor_kind,
        "user": entry.names.user,
        "key": entry.key,
        "command": entry.command,
        "address": entry.address,
        "object_kind": entry.model,
        "object_id": entry.object_id,
        "object": entry.object_name,
        "team": entry.names.team,
        "subject": entry.names.subject,
        "changes": entry.changes,
        "detail": entry.detail,
        "reason": entry.reason,
    }


def change_lines(entry: AuditEntry) -> list[str]:
    """Return ``field: before → after`` for each changed field; a secret's values are hidden."""
    lines = []
    for name, change in entry.changes.items():
        values = [str(change[side]) for side in ("before", "after") if side in change]
        arrow = {("after",): "→ ", ("before",): "removed "}.get(tuple(change), "")
        lines.append(f"{name}: {arrow}{' → '.join(values)}" if values else f"{name}: changed")
    return lines
