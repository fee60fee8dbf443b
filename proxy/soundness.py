"""Rows that a hand in the database has made unreadable: which, and in what field.

No form and no file writes one. SQLite takes anything in any column, PostgreSQL at least any JSON:
one such row must not keep all others from being read, nor be taken for what it does not say.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final, NamedTuple

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import Error, connection, models
from django.db.models import F, Func, Q, TextField

from proxy.models import ApiKey, Budget, Route, Upstream

log = logging.getLogger("proxy.gateway")

Rows = Mapping[type[models.Model], Sequence[Any]]

USER: Final[Any] = get_user_model()

KINDS: Final[Mapping[type[Any], tuple[type[Any], ...]]] = {
    models.BinaryField: (bytes, memoryview),
    models.BooleanField: (bool,),
    models.CharField: (str,),
    models.DateTimeField: (datetime,),  # a DateField too
    models.DateField: (date,),
    models.DecimalField: (Decimal,),
    models.ForeignKey: (int,),
    models.IntegerField: (int,),
}
"""What a field holds; of JSON the row's own rules say it."""
OTHER_KIND: Final = "what stands there is of another kind"
NOT_THERE: Final = "what it points to is not there"


@dataclass(frozen=True, slots=True)
class Unread:
    """A row that is left out."""

    kind: str
    id: int
    field: str
    why: str
    """Names what stands there: for whoever may see the row, never for a log."""
    opens: bool
    """Whether a form can show it."""
    model: str
    """As the admin's addresses name it."""

    def __str__(self) -> str:
        return f"{self.kind} {self.id}: {self.field} cannot be read"


class Column(NamedTuple):
    """What stands in one field of each sound row."""

    name: str
    attname: str
    kinds: tuple[type[Any], ...]
    null: bool
    choices: frozenset[Any]
    other: Any
    """The model of the row that it points to."""

    def holds(self, value: Any) -> bool:
        if value is None or value is Ellipsis:
            return value is None and self.null
        if not isinstance(value, self.kinds) or (self.choices and value not in self.choices):
            return False
        return not isinstance(value, Decimal) or math.isfinite(value)


@cache
def _columns(model: Any) -> tuple[Column, ...]:
    return tuple(
        Column(
            name=field.name,
            attname=field.attname,
            kinds=next((KINDS[kind] for kind in type(field).__mro__ if kind in KINDS), (object,)),
            null=field.null,
            choices=frozenset(dict(field.flatchoices or ())),
            other=field.related_model,
        )
        for field in model._meta.concrete_fields  # noqa: SLF001 - documented
    )


def rows_of(model: type[models.Model]) -> list[Any]:
    """All rows; one that cannot be read comes without the fields that cannot.

    Raises what the database raises when it is away.
    """
    order = [name for name in model._meta.ordering or () if "__" not in str(name)]  # noqa: SLF001 - documented
    rows = model._default_manager.order_by(*order)  # noqa: SLF001 - documented
    found = _as_far_as_readable(rows)
    by_id = {row.pk: row for row in found}
    for pk, name in _no_instants(rows):
        if pk in by_id:
            by_id[pk].__dict__.pop(name, None)
    return found


def judged(rows: Rows, *, ask: bool) -> tuple[Rows, list[Unread]]:
    """The rows that can be relied on, linked to each other; and those that cannot.

    What points to an unreadable row goes with it, and so do the keys whose hard budget is
    unreadable: nobody knows what they may spend. ``ask``: a row that was made between two queries
    is looked for in the database.
    """
    known = {model: {row.pk: row for row in found} for model, found in rows.items()}
    unread = []
    bad: dict[type[models.Model], set[Any]] = defaultdict(set)
    for model, found in rows.items():
        for row in found:
            wrong = (model is not USER and complaint(row)) or _link(row, known, ask=ask)
            if wrong:
                bad[model].add(row.pk)
                unread.append(_unread(row, *wrong))
                if model is Budget and row.__dict__.get("hard", True):
                    bad[ApiKey] |= {key.pk for key in rows[ApiKey] if _pays(row, key)}
    while any(bad.values()) and (
        more := [
            (model, row.pk)
            for model, found in rows.items()
            for row in found
            if row.pk not in bad[model] and any(pk in bad[other] for other, pk in _links(row))
        ]
    ):
        for model, pk in more:
            bad[model].add(pk)
    sound = {
        model: [row for row in found if row.pk not in bad[model]] for model, found in rows.items()
    }
    return sound, unread


def complaint(row: models.Model) -> tuple[str, str] | None:
    """The first field that cannot be read, and why; None for a sound row."""
    for column in _columns(type(row)):
        if not column.holds(row.__dict__.get(column.attname, Ellipsis)):
            return column.name, OTHER_KIND
    try:
        _check(row)
    except ValidationError as wrong:
        told = getattr(wrong, "message_dict", None) if hasattr(wrong, "error_dict") else None
        field, messages = next(iter(told.items())) if told else ("row", wrong.messages)
        return field, " ".join(messages)
    except Exception:  # noqa: BLE001 - whatever a rule stumbles over, nobody can rely on
        return "row", OTHER_KIND
    return None


def _check(row: models.Model) -> None:
    match row:
        case Upstream():
            row.check_fields()
            try:
                row.check_secret()
            except ValidationError as wrong:
                raise ValidationError({"secret": wrong.messages}) from None
        case Budget():
            for field, told in row.faults():
                raise ValidationError({field: told})
        case Route():
            pass  # its rule is about other rows, and the database's own
        case _:
            row.clean()


def _as_far_as_readable(rows: "models.QuerySet[models.Model]") -> list[Any]:
    """By halves, so that one row among many costs few queries."""
    try:
        return list(rows)
    except Exception as exc:
        if not _is_of_a_value(exc):
            raise
    ids = list(rows.values_list("pk", flat=True))
    order = {pk: place for place, pk in enumerate(ids)}
    found = _by_halves(rows, sorted(ids))
    return sorted(found, key=lambda row: order.get(row.pk, len(ids)))


def _by_halves(rows: "models.QuerySet[models.Model]", ids: Sequence[int]) -> list[Any]:
    if len(ids) <= 1:
        row = rows.filter(pk__in=ids)
        return list(row.defer(*_unreadable_fields(row)))
    middle = len(ids) // 2
    found: list[Any] = []
    for half in (ids[:middle], ids[middle:]):
        part = rows.filter(pk__gte=half[0], pk__lte=half[-1])
        try:
            found += part
        except Exception as exc:
            if not _is_of_a_value(exc):
                raise
            found += _by_halves(rows, half)
    return found


def _unreadable_fields(row: "models.QuerySet[models.Model]") -> Iterator[str]:
    for column in _columns(row.model):
        try:
            list(row.values_list(column.attname))
        except Exception as exc:
            if not _is_of_a_value(exc):
                raise
            yield column.attname


def _is_of_a_value(exc: Exception) -> bool:
    """Whether a value could not be made of what stands in a column; else the database is away."""
    return not isinstance(exc, Error) or "UTF-8" in str(exc)


def _no_instants(rows: "models.QuerySet[models.Model]") -> Iterator[tuple[Any, str]]:
    """SQLite: what is no instant is read as null, and a key that ends would never end."""
    if connection.vendor != "sqlite":
        return
    for name, instant in _instants(rows.model):
        lost = rows.exclude(**{name: None}).annotate(instant=instant)
        for pk in lost.filter(instant=None).values_list("pk", flat=True):
            yield pk, name


def has_lost_instant(row: models.Model) -> bool:
    """Return whether a column of this one row holds what is no instant, in one query."""
    if connection.vendor != "sqlite":
        return False
    lost, rows = Q(pk__in=()), type(row)._default_manager.filter(pk=row.pk)  # noqa: SLF001 - documented
    for name, instant in _instants(type(row)):
        rows = rows.annotate(**{f"{name}_instant": instant})
        lost |= Q(**{f"{name}__isnull": False, f"{name}_instant": None})
    return rows.filter(lost).exists()


def _instants(model: type[models.Model]) -> Iterator[tuple[str, Func]]:
    """The columns that may be null, and what SQLite itself makes of what is in them."""
    for column in _columns(model):
        if column.null and column.kinds == KINDS[models.DateTimeField]:
            yield column.name, Func(F(column.name), function="datetime", output_field=TextField())


def _link(
    row: models.Model, known: Mapping[Any, Mapping[Any, Any]], *, ask: bool
) -> tuple[str, str] | None:
    for column in _columns(type(row)):
        pk = row.__dict__.get(column.attname)
        if column.other not in known or pk is None:
            continue
        other = known[column.other].get(pk)
        if other is None and ask:
            other = column.other.objects.filter(pk=pk).first()
        if other is None:
            return column.name, NOT_THERE
        setattr(row, column.name, other)
    return None


def _links(row: models.Model) -> Iterator[tuple[Any, Any]]:
    for column in _columns(type(row)):
        if column.other:
            yield column.other, row.__dict__.get(column.attname)


def _pays(budget: Any, key: Any) -> bool:
    """Whether the key spends this budget, as far as its owner can be read."""
    owners, payer = budget.__dict__, key.__dict__
    pairs = (("team_id", "team_id"), ("key_id", "id"), ("user_id", "user_id"))
    return any(
        owners.get(whose) is not None and owners.get(whose) == payer.get(who)
        for whose, who in (*pairs, ("key_id", "successor_id"))
    )


def _unread(row: Any, field: str, why: str) -> Unread:
    names = row._meta  # noqa: SLF001 - documented
    return Unread(
        kind=str(names.verbose_name),
        id=row.pk,
        field=field,
        why=why,
        opens=not row.get_deferred_fields(),
        model=str(names.model_name),
    )


class Seen:
    """What the gateway of this process leaves out, as it saw it last."""

    def __init__(self) -> None:
        self.unread: Sequence[Unread] = ()

    def tell(self, unread: Sequence[Unread]) -> None:
        """Each row is logged once for as long as it is unreadable."""
        before = set(map(str, self.unread))
        for one in unread:
            if str(one) not in before:
                log.error("%s: it is left out, and whatever depends on it", one)
        self.unread = tuple(unread)


SEEN: Final = Seen()
