"""The dimensions by which reports filter and group, with the database column of each.

The columns of teams, keys and users have ids, and reports show names and take them in filters. Two
ids with one name, such as that of a deleted account that another user got, stay two groups.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Self

from django.db.models import F, OuterRef, Subquery
from django.db.models.functions import Coalesce

from proxy.ledger.maintenance.export import key_id
from proxy.models import ApiKey, Person, Team
from proxy.models.ledger_names import (
    MAX_IDS,
    LedgerNames,
    key_ids,
    person_ids,
    team_ids,
)

DIMENSIONS: Final[Mapping[str, str]] = {
    "team": "team",
    "key": "key_id",
    "key_id": "key_id",
    "user": "user",
    "client": "client_name",
    "endpoint": "endpoint",
    "model": "model_requested",
    "model_upstream": "model_upstream",
    "upstream": "upstream",
    "service_tier": "service_tier",
    "context_window": "context_window",
    "outcome": "outcome",
    "status": "status",
    "stop_reason": "stop_reason",
    "error_type": "error_type",
}
"""Name of the dimension in the API -> its column in the rollup tables and in Exchange."""

NAMES: Final = {"team": "teams", "key": "keys", "user": "persons"}
"""Dimension whose column has ids -> the attribute of ``LedgerNames`` with their names."""
IDS: Final[Mapping[str, Callable[[str], Sequence[Any]]]] = {
    "team": team_ids,
    "key": key_ids,
    "user": person_ids,
}
"""Dimension -> function that returns the ids of a name."""


class ShownName(str):
    """The name of a team, key or user. It does not equal the same name of another id."""

    __slots__ = ("id",)
    id: Hashable

    def __new__(cls, name: str, ident: Hashable) -> Self:
        shown = super().__new__(cls, name)
        shown.id = ident
        return shown

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, ShownName) else str(self) == other

    def __ne__(self, other: object) -> bool:  # ``str`` has its own
        return not self == other

    __hash__ = str.__hash__


def shown(groups: Sequence[str], keys: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the keys of groups with names in place of the ids of teams, keys and users."""
    found, known = list(keys), LedgerNames()
    for at, group in enumerate(groups):
        if group in NAMES:
            names = getattr(known, NAMES[group]).load(key[at] for key in found)
            found = [
                (*key[:at], ShownName(names[key[at]], key[at]), *key[at + 1 :]) for key in found
            ]
    return found


def shown_rows(
    groups: Sequence[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """Yield the values of the groups, with names in place of ids, and the row that has them."""
    remaining = iter(rows)
    while some := list(islice(remaining, MAX_IDS)):
        keys = [tuple(row[column] for column in columns) for row in some]
        yield from zip(shown(groups, keys), some, strict=True)


def column_values(name: str, values: Iterable[Any]) -> list[Any]:
    """Return the values of a dimension's column for the values of the parameter ``name``."""
    return [one for value in values for one in IDS[name](value)] if name in IDS else list(values)


def dimension_value(name: str, value: Any) -> Any:
    """Return a value of a dimension as the API shows it: the id that filters take."""
    return key_id(value) if name == "key_id" else str(value) if name in NAMES else value


def order_of(name: str, column: str) -> Any:
    """Return the expression that orders rows by a dimension: by the name, where there is one."""
    named: Mapping[str, Any] = {
        "team": Team.objects.filter(ledger_id=OuterRef(column)).values("name"),
        "key": ApiKey.objects.filter(pk=OuterRef(column)).order_by().values("name"),
        "user": Person.objects.filter(pk=OuterRef(column)).values("user__username"),
    }
    if name not in named:
        return F(column)
    by_name = Subquery(named[name][:1])
    return by_name if name == "key" else Coalesce(by_name, F(column))
