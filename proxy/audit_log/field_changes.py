"""Record each change of the configuration, of users and of groups, however the change came.

Django's signals call this module when a row is saved or deleted, so changes by the admin, the API,
commands, the configuration file and sign-ins have the same entries.
"""

from collections.abc import Mapping
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import models
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_save

from proxy.models import Identity, SavedReport
from proxy.models.audit import Action
from proxy.models.config_revision import WATCHED
from proxy.models.setup.columns import SEALED

from .bulk import current_batch
from .record import Fields, Secret, changes_between, record

UNRECORDED: Final = frozenset(
    {"id", "ledger_id", "created", "last_used", "last_login", "date_joined"}
)
"""Fields that are not settings; a save that changes no other field has no entry."""

SECRETS: Final = frozenset({"digest", "password", "extra_body", "url"})
"""Fields whose values are in no entry: digests, and settings that may contain credentials."""

ACTIONS: Final[Mapping[tuple[str, str], Action]] = {
    ("apikey", "digest"): Action.ROTATE,
    ("apikey", "revoked"): Action.REVOKE,
}
"""(model, changed field) -> a more exact action than ``CHANGE``, if the field has a value now."""

BEFORE: Final = "_audit_before"
"""The attribute with the field values that the database had before the save."""


def fields_of(row: models.Model) -> dict[str, Any]:
    """Return the values of a row's settings by field name; a foreign key's is the row's name."""
    return {
        field.name: _value(row, field)
        for field in row._meta.concrete_fields  # noqa: SLF001 - Django documents this name
        if field.name not in UNRECORDED
    }


def _value(row: models.Model, field: "models.Field[Any, Any]") -> Any:
    value = getattr(row, field.attname)
    if field.name in SECRETS:
        return Secret(bytes(value) if isinstance(value, memoryview) else value)
    if isinstance(value, dict) and SEALED in value:
        return Secret(value)
    if isinstance(field, models.ForeignKey) and value is not None:
        batch, kind = current_batch(), field.related_model
        if batch is not None and (name := batch.names.get((kind, value))):
            return name
        related = kind._base_manager.filter(pk=value).first()  # noqa: SLF001 - Django documents this name
        return str(related) if related else value
    return value


def _load_before(sender: type[models.Model], instance: Any, raw: bool = False, **_: Any) -> None:
    """Read the row that the save replaces; None for a new row."""
    row = None
    if instance.pk is not None and not raw:
        row = sender._base_manager.filter(pk=instance.pk).first()  # noqa: SLF001 - Django documents this name
    setattr(instance, BEFORE, fields_of(row) if row is not None else None)


def _record_save(
    sender: type[models.Model],
    instance: Any,
    raw: bool = False,
    update_fields: frozenset[str] | None = None,
    **_: Any,
) -> None:
    before = instance.__dict__.pop(BEFORE, None)
    if raw:
        return
    after = fields_of(instance)
    if before is None:
        after = {name: value for name, value in after.items() if not _is_empty(value)}
        record(Action.ADD, instance, after=after)
        return
    if update_fields is not None:
        before = {name: before[name] for name in before if name in update_fields}
        after = {name: after[name] for name in after if name in update_fields}
    if changes_between(before, after):
        record(_action(sender, before, after), instance, before=before, after=after)


def _action(sender: type[models.Model], before: Fields, after: Fields) -> Action:
    for (model, field), action in ACTIONS.items():
        is_changed = before.get(field) != after.get(field)
        if sender._meta.model_name == model and is_changed and not _is_empty(after[field]):  # noqa: SLF001 - Django documents this name
            return action
    return Action.CHANGE


def _record_deletion(sender: type[models.Model], instance: Any, **_: Any) -> None:
    values = {name: value for name, value in fields_of(instance).items() if not _is_empty(value)}
    record(Action.DELETE, instance, before=values)


def _is_empty(value: Any) -> bool:
    return (value.value if isinstance(value, Secret) else value) in (None, "", [], {})


def _record_members(
    sender: Any, instance: Any, action: str, model: Any, pk_set: set[int] | None, **_: Any
) -> None:
    """Record that groups or permissions were added to a row, or removed from it."""
    side = {"post_add": "after", "post_remove": "before", "pre_clear": "before"}.get(action)
    if side is None or (pk_set is not None and not pk_set):
        return
    rows = model._base_manager.filter(pk__in=pk_set or ())  # noqa: SLF001 - Django documents this name
    names = sorted(map(str, rows)) if pk_set is not None else "all"
    field = str(model._meta.verbose_name_plural)  # noqa: SLF001 - Django documents this name
    before, after = ({field: names} if side == each else {} for each in ("before", "after"))
    record(Action.CHANGE, instance, before=before, after=after)


def connect() -> None:
    """Connect the signals. ``AppConfig.ready`` calls it once."""
    user = get_user_model()
    for model in (*WATCHED, Identity, SavedReport, Group, user):
        uid = f"audit-{model._meta.label_lower}"  # noqa: SLF001 - Django documents this name
        pre_save.connect(_load_before, sender=model, dispatch_uid=uid)
        post_save.connect(_record_save, sender=model, dispatch_uid=uid)
        post_delete.connect(_record_deletion, sender=model, dispatch_uid=uid)
    for through in (user.groups.through, user.user_permissions.through, Group.permissions.through):
        m2m_changed.connect(_record_members, sender=through, dispatch_uid=f"audit-{through}")
