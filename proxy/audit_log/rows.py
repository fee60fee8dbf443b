"""The rows of the audit log as the API, the exports and the admin show them."""

from collections.abc import Iterator, Mapping
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
    """Return ``field: before → after`` for each changed setting, such as ``limits.rpm``.

    The values of a secret are hidden.
    """
    return [line for name, change in entry.changes.items() for line in _lines(name, change)]


def _lines(name: str, change: Mapping[str, Any]) -> Iterator[str]:
    before, after = change.get("before"), change.get("after")
    if isinstance(before, dict) and isinstance(after, dict):
        for part in dict.fromkeys((*before, *after)):
            if before.get(part) != after.get(part):
                sides = (("before", before), ("after", after))
                inner = {side: values[part] for side, values in sides if part in values}
                yield from _lines(f"{name}.{part}", inner)
        return
    values = [str(change[side]) for side in ("before", "after") if side in change]
    arrow = {"after": "→ ", "before": "removed "}.get("".join(change), "")
    yield f"{name}: {arrow}{' → '.join(values)}" if values else f"{name}: changed"
