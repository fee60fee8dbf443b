"""Erase the account of a person, the keys, and the name in the audit log and in other texts."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import models, transaction
from django.db.models import Q
from django.utils.timezone import now

from proxy.ledger.database.bulk_sql import slices
from proxy.ledger.posting.audit_links import Cause, intact_entries, link_again
from proxy.ledger.posting.hash_chain import lock_ledger
from proxy.models import (
    ApiKey,
    AuditEntry,
    Budget,
    Export,
    FormerName,
    IdempotentWrite,
    NameKind,
    Purge,
    Revision,
    SavedReport,
    SavedView,
    UsageByCallerDay,
    WebhookDelivery,
    WebhookEvent,
)
from proxy.permissions.readings import REASONS, searched_words

from .person import Person, key_name_of, new_name_of

TEXTS: Final[Sequence[tuple[type[models.Model], tuple[str, ...]]]] = (
    (Export, ("query", "reader")),
    (Purge, ("username",)),
    (SavedReport, ("query",)),
    (SavedView, ("query",)),
)
"""The columns of other tables in which names, or ids, of users occur."""


def revoke_keys(person: Person) -> None:
    """Revoke the keys and deactivate the account, so that no new request begins."""
    for key in ApiKey.objects.filter(pk__in=person.keys):
        key.revoke()
    if person.user_id is not None:
        for user in _users().filter(pk=person.user_id, is_active=True):
            user.is_active = False
            user.save(update_fields=["is_active"])


def is_last_superuser(person: Person) -> bool:
    superusers = _users().filter(is_superuser=True, is_active=True)
    return (
        superusers.filter(pk=person.user_id).exists()
        and not superusers.exclude(pk=person.user_id).exists()
    )


@transaction.atomic
def erase(person: Person, cause: Cause) -> int:
    """Delete the account and replace the person's names; return how many audit entries changed.

    It is one transaction: until it ends, a run that was interrupted finds the account and the keys.
    """
    _delete_sign_ins(person)
    for budget in Budget.objects.all():
        if person.email and person.email in budget.emails:
            budget.emails = [each for each in budget.emails if each != person.email]
            budget.save(update_fields=["emails"])
    if person.email:
        WebhookDelivery.objects.filter(email=person.email).delete()
    Budget.objects.filter(key__in=person.keys).delete()
    owners = [*person.keys, *([-person.user_id] if person.user_id is not None else ())]
    IdempotentWrite.objects.filter(owner__in=owners).delete()
    for pk in person.keys:
        ApiKey.objects.filter(pk=pk).update(
            name=key_name_of(pk), user=None, prefix="", digest=None, ip_allow=[], options={},
            last_used=None, revoked=now(), dropped=False,
        )  # fmt: skip
    for user in _users().filter(pk=person.user_id):
        user.delete()
    # The names that were kept for the rows of the person and of the person's old keys.
    own = UsageByCallerDay.objects.filter(user__in=(person.id, person.pseudonym))
    keys = own.exclude(key_id=None).values_list("key_id", flat=True).distinct()
    kept = Q(kind=NameKind.USER, ident=person.id)
    kept |= Q(kind=NameKind.KEY, ident__in=[str(pk) for pk in keys])
    FormerName.objects.filter(kept).delete()
    Revision.bump()
    changed = _replace_in_audit_log(person, cause)
    _replace_in_events(person)
    for table, columns in TEXTS:
        for row in table._default_manager.iterator():  # noqa: SLF001 - documented by Django
            _replace(row, person, columns)
    for row in apps.get_model("admin", "LogEntry").objects.iterator():
        _replace(row, person, ("object_repr", "change_message"))
    return changed


def _users() -> Any:
    return get_user_model()._default_manager  # noqa: SLF001 - documented by Django


def _delete_sign_ins(person: Person) -> None:
    """Delete the sessions of the admin, and the log of sign-ins with the person's name.

    The sessions of others forget the reasons for which their users read transcripts.
    """
    if person.user_id is not None:
        for session in apps.get_model("sessions", "Session").objects.iterator():
            values = session.get_decoded()
            if values.get("_auth_user_id") == str(person.user_id):
                session.delete()
            elif REASONS in values:  # names sessions and searched words, perhaps of the person
                del values[REASONS]
                session.session_data = type(session).objects.encode(values)
                session.save(update_fields=["session_data"])
    for name in ("AccessAttempt", "AccessFailureLog", "AccessLog"):
        apps.get_model("axes", name).objects.filter(username__iexact=person.name).delete()


def audit_entries(person: Person) -> Iterator[tuple[AuditEntry, list[str]]]:
    """Yield the entries that name the person, changed but not saved, with the changed columns."""
    keys = {name: new_name_of(pk, name) for pk, name in person.keys.items()}
    entries = AuditEntry.objects.filter(created__lte=person.until)
    about = entries.filter(Q(user=person.id) | Q(subject=person.id))
    searches = {searched_words(detail) for detail in about.values_list("detail", flat=True)} - {""}
    for entry in entries.iterator():
        before = {name: getattr(entry, name) for name in AUDIT_COLUMNS}
        if entry.user == person.id:
            entry.address = ""
        for name in ("user", "subject"):
            if getattr(entry, name) == person.id:
                setattr(entry, name, person.pseudonym)
        if (words := searched_words(entry.detail)) in searches:
            entry.detail = entry.detail.replace(words, "erased words", 1)
        entry.key = keys.get(entry.key, entry.key)
        if (entry.model, entry.object_id) in person.own:
            entry.changes, entry.object_name = {}, person.pseudonym
        key_id = (
            int(entry.object_id) if entry.model == "key" and entry.object_id.isdigit() else None
        )
        for name in ("user", "subject", "object_name", "changes", "detail", "reason"):
            setattr(entry, name, person.replace_in(getattr(entry, name), key_id=key_id))
        if changed := [name for name in AUDIT_COLUMNS if getattr(entry, name) != before[name]]:
            yield entry, changed


AUDIT_COLUMNS: Final = (
    "user", "key", "address", "object_name", "subject", "changes", "detail", "reason",
)  # fmt: skip


def _replace_in_audit_log(person: Person, cause: Cause) -> int:
    """Keep the entries, which show what was done, with the pseudonym in place of the name.

    A changed entry gets a new link of the hash chain, unless it differed from its link before: a
    new link would hide that.
    """
    with transaction.atomic():
        head = lock_ledger()
        entries = list(audit_entries(person))
        for some in slices(entries):
            intact = intact_entries([entry.pk for entry, _ in some])
            for entry, changed in some:
                values = {name: _fitting(entry, name) for name in changed}
                AuditEntry.objects.filter(pk=entry.pk).update(**values)
            if intact:
                link_again(head, AuditEntry.objects.filter(pk__in=intact), cause.link(head))
    return len(entries)


def _replace_in_events(person: Person) -> None:
    for event in WebhookEvent.objects.iterator():
        body = json.loads(event.body)
        data = body.get("data", {})
        is_key = data.get("kind") == "key" and str(data.get("id")).isdigit()
        key_id = int(data["id"]) if is_key else None
        replaced = person.replace_in(body, key_id=key_id)
        if replaced != body:
            text = json.dumps(replaced, separators=(",", ":"))
            WebhookEvent.objects.filter(pk=event.pk).update(body=text)


def _replace(row: models.Model, person: Person, columns: Sequence[str]) -> None:
    before = {name: getattr(row, name) for name in columns}
    after = {name: person.replace_in(value) for name, value in before.items()}
    changed = [name for name in columns if before[name] != after[name]]
    if changed:
        for name in changed:
            setattr(row, name, after[name])
        values = {name: _fitting(row, name) for name in changed}
        type(row)._default_manager.filter(pk=row.pk).update(**values)  # noqa: SLF001 - documented by Django


def _fitting(row: models.Model, name: str) -> Any:
    """Return a column's value, cut to the column: a pseudonym may be longer than the name."""
    value, field = getattr(row, name), row._meta.get_field(name)  # noqa: SLF001 - documented by Django
    limit = getattr(field, "max_length", None)
    return value[:limit] if isinstance(value, str) and limit else value
