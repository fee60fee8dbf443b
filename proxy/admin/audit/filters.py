"""Filters of the audit log: one form, sent by GET, as in the request list."""

from typing import Final

from django.db.models import Q

from proxy.admin.requests.filters import (
    FormFilter,
    SinceFilter,
    TeamFilter,
    UntilFilter,
    WithinFilter,
    choice_field,
    filter_field,
)
from proxy.models import Action, ActorKind, AuditEntry
from proxy.models.ledger_names import person_ids
from proxy.permissions.readings import LEDGER_AS

READINGS: Final = Q(action__in=(Action.READ, Action.EXPORT), model="request")
"""Matches readings and downloads of transcripts, however they came."""

EXPORTS: Final = Q(action=Action.EXPORT, model="", detail__startswith=LEDGER_AS)
"""Matches exports of the ledger, whose rows have the first words of everybody's requests."""

CHANGES: Final = (Action.ADD, Action.CHANGE, Action.DELETE, Action.REVOKE, Action.ROTATE)
OBJECT_KINDS: Final = (
    "key", "team", "user", "group", "route", "target", "upstream", "upstream policy", "price",
    "budget", "pause", "request", "export", "purge", "identity",
)  # fmt: skip


FILTERS: Final[tuple[type[FormFilter], ...]] = (
    WithinFilter,
    choice_field(
        "action",
        "did",
        {
            "readings": ("Any reading of a transcript", READINGS),
            "changes": (
                "Any change",
                Q(action__in=CHANGES),
            ),
            **{value: (str(label), Q(action=value)) for value, label in Action.choices},
        },
        column="action",
        folded=False,
    ),
    filter_field("by user", "user", AuditEntry.acted_by, folded=False),
    filter_field(
        "whose transcript",
        "subject",
        lambda value: Q(subject__in=person_ids(value)),
        folded=False,
    ),
    TeamFilter,
    choice_field(
        "object",
        "model",
        {kind: (kind, Q(model=kind)) for kind in OBJECT_KINDS},
        column="model",
        folded=False,
    ),
    filter_field(
        "object id or name",
        "object",
        lambda value: Q(object_id=value) | Q(object_name=value),
    ),
    SinceFilter,
    UntilFilter,
    choice_field(
        "kind of actor",
        "kind",
        {value: (str(label), Q(actor_kind=value)) for value, label in ActorKind.choices},
    ),
    filter_field("command", "command", hint="applyconfig"),
    filter_field("client address", "address"),
)
