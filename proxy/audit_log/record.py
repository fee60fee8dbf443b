"""Record an entry of the audit log. This is the only code that creates entries."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Final

from django.core.exceptions import ObjectDoesNotExist
from django.db import models

from proxy.models import Team
from proxy.models.audit import MAX_DETAIL, MAX_REASON, Action, AuditEntry

from .actor import Actor, current_actor
from .bulk import current_batch

MAX_VALUE: Final = 500
"""Maximum characters of a value in an entry, as JSON; a longer value is cut."""

SECRET_CHANGED: Final = {"changed": True}
"""The change of a secret field, whose values are in no entry."""

Fields = Mapping[str, Any]
"""Values by field name, see ``field_changes.fields_of``. A secret is a ``Secret``."""


@dataclass(frozen=True, slots=True)
class Secret:
    """The value of a secret field. It is compared, but it never enters an entry or a message."""

    value: object = field(repr=False)


def record(
    action: Action,
    obj: models.Model | None = None,
    *,
    before: Fields | None = None,
    after: Fields | None = None,
    detail: str = "",
    reason: str = "",
    subject: str | None = None,
    team: str | None = None,
    actor: Actor | None = None,
) -> AuditEntry:
    """Record that the current actor applied ``action`` to ``obj``.

    Call it in the transaction of the change, or before a response shows what was read, so that
    nothing happens without an entry. ``before`` and ``after`` are field values; the entry has those
    that differ. ``subject`` is the person whose data was read and ``team`` the object's team, both
    by their ids in the ledger: by default, those of ``obj``. ``reason`` is why the actor reads a
    transcript.
    """
    actor = actor or current_actor()
    entry = AuditEntry(
        action=action,
        actor_kind=actor.kind,
        user=actor.user,
        key=actor.key,
        command=actor.command,
        address=actor.address,
        model="" if obj is None else str(obj._meta.verbose_name)[:40],  # noqa: SLF001 - Django documents this name
        object_id="" if obj is None else str(obj.pk)[:64],
        object_name="" if obj is None else _text(str(obj), 200),
        team=team_of(obj) if team is None else team,
        subject=subject_of(action, obj) if subject is None else subject,
        changes=changes_between(before or {}, after or {}),
        detail=_text(detail, MAX_DETAIL),
        reason=_text(reason, MAX_REASON),
    )
    if (batch := current_batch()) is None:
        entry.save(force_insert=True)
    else:
        batch.entries.append(entry)
    return entry


def changes_between(before: Fields, after: Fields) -> dict[str, Any]:
    """Return ``{field: {"before": ..., "after": ...}}`` for the fields that differ.

    A field that only one of the two versions has lacks the key of the other version.
    """
    changes: dict[str, Any] = {}
    for name in dict.fromkeys((*before, *after)):
        values = {
            side: fields[name]
            for side, fields in (("before", before), ("after", after))
            if name in fields
        }
        if len(values) == 2 and values["before"] == values["after"]:
            continue
        has_secret = any(isinstance(value, Secret) for value in values.values())
        changes[name] = (
            SECRET_CHANGED
            if has_secret
            else {side: _plain(value) for side, value in values.items()}
        )
    return changes


def team_of(obj: models.Model | None) -> str:
    """Return the ledger id of the team to which an object belongs; "" without a single team.

    Objects without a team of their own have the team of the key or the route they belong to.
    """
    if obj is None:
        return ""
    if isinstance(obj, Team):
        return obj.ledger_id
    for name in ("team", "key", "route"):
        owner = _owner(obj, name)
        if isinstance(owner, models.Model):
            return team_of(owner)
        if isinstance(owner, str) and name == "team":
            return owner
    return ""


def _owner(obj: models.Model, name: str) -> Any:
    """Return the related object; None if there is none, or if it was deleted with this object."""
    try:
        return getattr(obj, name, None)
    except ObjectDoesNotExist:
        return None


def subject_of(action: Action, obj: models.Model | None) -> str:
    """Return the id of the person whose transcript was read or exported; "" for other actions."""
    if action not in {Action.READ, Action.EXPORT}:
        return ""
    user = getattr(obj, "user", "")
    return user if isinstance(user, str) else ""


def _plain(value: Any) -> Any:
    """Return the value as JSON types that every database can store, cut if it is too long."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str | Decimal):
        return _text(str(value), MAX_VALUE)
    if isinstance(value, dict | list | tuple):
        encoded = json.dumps(value, default=str, sort_keys=True)
        return (
            json.loads(encoded)
            if len(encoded) <= MAX_VALUE and "\\u" not in encoded
            else (
                _text(json.dumps(value, default=str, sort_keys=True, ensure_ascii=False), MAX_VALUE)
            )
        )
    return _text(str(value), MAX_VALUE)


def _text(text: str, limit: int) -> str:
    """Return the text without NUL and unpaired surrogates, which databases reject, cut to fit."""
    clean = text.replace("\x00", "\ufffd").encode(errors="replace").decode()
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"
