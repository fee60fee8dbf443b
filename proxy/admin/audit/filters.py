"""Filters of the audit log: one form, sent by GET, as in the request list."""

from collections.abc import Iterable
from typing import Final

from django.db.models import Q

from proxy.admin.requests.filter_kinds import (
    FixedFilter,
    FormFilter,
    SinceFilter,
    TextFilter,
    UntilFilter,
)
from proxy.admin.requests.filters import TeamFilter, WithinFilter
from proxy.models import Action, ActorKind, AuditEntry
from proxy.models.ledger_names import person_ids
from proxy.permissions.readings import LEDGER_AS

READINGS: Final = Q(action__in=(Action.READ, Action.EXPORT), model="request")
"""Matches readings and downloads of transcripts, however they came."""

EXPORTS: Final = Q(action=Action.EXPORT, model="", detail__startswith=LEDGER_AS)
"""Matches exports of the ledger, whose rows have the first words of everybody's requests."""

OBJECT_KINDS: Final = (
    "key", "team", "user", "group", "route", "target", "upstream", "upstream policy", "price",
    "budget", "pause", "request", "export", "purge", "identity",
)  # fmt: skip


class ActionFilter(FixedFilter):
    title = "action"
    parameter_name = "did"
    folded = False
    column = "action"
    choices_ = {
        "readings": ("Any reading of a transcript", READINGS),
        "changes": (
            "Any change",
            Q(action__in=[Action.ADD, Action.CHANGE, Action.DELETE, Action.REVOKE, Action.ROTATE]),
        ),
        **{value: (str(label), Q(action=value)) for value, label in Action.choices},
    }


class ByFilter(TextFilter):
    title = "by user"
    parameter_name = "user"
    folded = False

    def condition(self) -> Q:
        return AuditEntry.acted_by(self.value)


class SubjectFilter(TextFilter):
    title = "whose transcript"
    parameter_name = "subject"
    folded = False

    def condition(self) -> Q:
        return Q(subject__in=person_ids(self.value))


class ActorKindFilter(FixedFilter):
    title = "kind of actor"
    parameter_name = "kind"
    choices_ = {value: (str(label), Q(actor_kind=value)) for value, label in ActorKind.choices}


class ObjectKindFilter(FormFilter):
    title = "object"
    parameter_name = "model"
    folded = False

    def select_choices(self) -> Iterable[tuple[str, str]]:
        return [(kind, kind) for kind in OBJECT_KINDS]

    def condition(self) -> Q:
        return Q(model=self.value)


class ObjectFilter(FormFilter):
    title = "object id or name"
    parameter_name = "object"
    kind = "text"

    def condition(self) -> Q:
        return Q(object_id=self.value) | Q(object_name=self.value)


class CommandFilter(TextFilter):
    title = "command"
    parameter_name = "command"
    hint = "applyconfig"


class AddressFilter(TextFilter):
    title = "client address"
    parameter_name = "address"


FILTERS: tuple[type[FormFilter], ...] = (
    WithinFilter,
    ActionFilter,
    ByFilter,
    SubjectFilter,
    TeamFilter,
    ObjectKindFilter,
    ObjectFilter,
    SinceFilter,
    UntilFilter,
    ActorKindFilter,
    CommandFilter,
    AddressFilter,
)
