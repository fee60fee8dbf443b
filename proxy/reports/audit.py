"""The audit log: a list with a cursor, newest first, and its export as CSV or NDJSON."""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any, ClassVar, Final

from django.db.models import QuerySet
from rest_framework import serializers

from proxy.audit_log.rows import COLUMNS, entry_row
from proxy.models import Action, ActorKind, AuditEntry
from proxy.permissions.row_permissions import Reader, visible_entries
from proxy.reports.core.dimensions import column_values
from proxy.reports.core.pagination import KeysetParameters, KeysetView, only_values
from proxy.reports.core.permissions import MayReadAuditLog
from proxy.reports.core.query_parameters import FILTERS, Choice, Values
from proxy.reports.core.rendering import page_of

COLUMN_OF: Final[Mapping[str, str]] = {
    "action": "action",
    "actor_kind": "actor_kind",
    "key": "key",
    "command": "command",
    "address": "address",
    "object_kind": "model",
    "object_id": "object_id",
    "object": "object_name",
    "team": "team",
    "subject": "subject",
}
"""Parameter -> column of the model; each accepts several values, as ``user`` does."""
PARTIES: Final[Mapping[str, str]] = {"team": "team", "subject": "user"}
"""Parameter with names -> the dimension whose ids the column has."""

CHOICES: Final = {"action": Action.values, "actor_kind": ActorKind.values}


class AuditParameters(KeysetParameters):
    """A time range, and a filter for each field of an entry."""

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        for name in (*FILTERS, "key_id", "status"):
            fields.pop(name, None)
        for name in ("user", *COLUMN_OF):
            values = CHOICES.get(name)
            child = {"child": Choice(choices=values)} if values else {}
            text = f"Only entries with one of these values of `{name}`."
            fields[name] = Values(help_text=text, **child)
        return fields


class AuditRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    created_at = serializers.CharField()
    action = serializers.ChoiceField(choices=Action.choices)
    actor = serializers.CharField(help_text="Who acted, as text.")
    actor_kind = serializers.ChoiceField(choices=ActorKind.choices)
    user = serializers.CharField(
        help_text="The signed-in user, the user of the key, or the operating-system user."
    )
    key = serializers.CharField(help_text="team/name of the gateway key, or empty.")
    command = serializers.CharField(help_text="The manage.py command, or empty.")
    address = serializers.CharField(help_text="The client's address; empty for a command.")
    object_kind = serializers.CharField()
    object_id = serializers.CharField()
    object = serializers.CharField(help_text="The object's name at that time.")
    team = serializers.CharField(help_text="The object's team; empty without a single team.")
    subject = serializers.CharField(help_text="The user whose transcript was read, or empty.")
    changes = serializers.DictField(
        help_text='By field: {"before": ..., "after": ...}, or {"changed": true} for a secret.'
    )
    detail = serializers.CharField()
    reason = serializers.CharField(help_text="Why the transcript was read, if it was asked.")


class AuditView(KeysetView):
    """List the entries of the audit log, newest first. No method changes or deletes an entry."""

    parameters, answer = AuditParameters, page_of(AuditRow)
    permission_classes = (MayReadAuditLog,)
    file_name, columns = "audit-log", COLUMNS
    reads_requests = False
    row_of: ClassVar = staticmethod(entry_row)

    @staticmethod
    def matching_rows(reader: Reader, query: Mapping[str, Any]) -> QuerySet[AuditEntry]:
        time_range = query["time_range"]
        entries = visible_entries(reader).filter(
            created__gte=time_range.start, created__lt=time_range.end
        )
        if users := query.get("user"):
            entries = entries.filter(reduce(or_, map(AuditEntry.acted_by, users)))
        ids = {name: column_values(kind, query.get(name) or ()) for name, kind in PARTIES.items()}
        return only_values(entries, {**query, **ids}, COLUMN_OF)
