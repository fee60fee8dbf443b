"""Find configuration rows with invalid values in the database, and exclude these rows.

The admin forms and the configuration file never write such a row, but direct SQL can: SQLite stores
any value in any column, and PostgreSQL any JSON in a JSON column. Such a row must not take effect,
and it must not prevent the gateway from reading the other rows.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import connection, models
from django.db.models import F, Func

from proxy.models import ApiKey, Budget, Route, Upstream

log = logging.getLogger("proxy.gateway")

Rows = Mapping[type[models.Model], Sequence[Any]]

USER: Final[Any] = get_user_model()

WRONG_TYPE: Final = "the stored value has another type"
NOT_FOUND: Final = "the row it refers to does not exist"
MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A configuration row that is not in effect, because a value in it is invalid."""

    kind: str
    id: int
    field: str
    why: str
    """The reason. It may quote the stored value, so it is shown only to users who may see the row,
    and never logged."""
    has_form: bool
    """Whether the admin can show the row. It can if each column could be converted to its type."""
    model: str
    """The name of the model as in the admin's URLs."""

    def __str__(self) -> str:
        return f"{self.kind} {self.id}: {self.field} cannot be read"


def fetch_all(model: type[models.Model]) -> list[Any]:
    """Return all rows of the model. In each row, the fields that cannot be read are deferred.

    Raises Django's database errors if the database is not available.
    """
    order = [name for name in model._meta.ordering or () if "__" not in str(name)]  # noqa: SLF001 - Django documents this name
    return fetch_rows(model._default_manager.order_by(*order))  # noqa: SLF001 - Django documents this name


def fetch_rows(rows: "models.QuerySet[Any]") -> list[Any]:
    """Return the rows of a query without joins.

    A field whose value cannot be converted is deferred. A queryset converts all rows in one pass,
    so a single such value would make all rows unreadable.
    """
    fields = rows.model._meta.concrete_fields  # noqa: SLF001 - Django documents this name
    columns = [field.get_col(rows.model._meta.db_table) for field in fields]  # noqa: SLF001 - Django documents this name
    converters = [
        [*connection.ops.get_db_converters(column), *column.get_db_converters(connection)]
        for column in columns
    ]
    with _undecodable_text_as_bytes():
        stored = list(rows.values_list(*map(_as_stored, fields)))
    found = []
    for values in stored:
        readable = dict(_convert(columns, converters, values))
        found.append(rows.model.from_db(rows.db, readable.keys(), readable.values()))
    return found


def _as_stored(field: "models.Field[Any, Any]") -> Func:
    """Return an expression that selects the column unconverted.

    SQLite's driver converts the values of plain columns; the unary ``+`` prevents that. Django
    converts by the output field; a plain ``Field`` prevents that.
    """
    template = "+%(expressions)s" if connection.vendor == "sqlite" else "%(expressions)s"
    return Func(F(field.attname), template=template, output_field=models.Field())


def _convert(
    columns: Sequence[Any], converters: Sequence[Any], values: Sequence[Any]
) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each field of one row that can be read.

    Values are converted as by a queryset.
    """
    for column, functions, stored in zip(columns, converters, values, strict=True):
        value = stored
        try:
            for convert in functions:
                value = convert(value, column, connection)
        except Exception:  # noqa: BLE001, S112 - each converter raises its own errors
            continue
        # SQLite: Django converts a text that is not a date to None
        if value is not None or stored is None:
            yield column.target.attname, value


@contextmanager
def _undecodable_text_as_bytes() -> Iterator[None]:
    """Make SQLite return text that is not UTF-8 as bytes, which no text field accepts."""
    if connection.vendor != "sqlite":
        yield
        return
    connection.ensure_connection()
    driver = connection.connection
    before, driver.text_factory = driver.text_factory, _decode
    try:
        yield
    finally:
        driver.text_factory = before


def _decode(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def split_readable(rows: Rows, *, query_missing: bool) -> tuple[Rows, list[UnreadableRow]]:
    """Return the rows that are in effect, with their relations set, and the unreadable rows.

    A row that refers to an unreadable row is excluded too. Keys with an unreadable hard budget are
    also excluded, because their limit is unknown. ``query_missing``: query the database for a
    referenced row that is missing, because it may have been created between two queries.
    """
    known = {model: {row.pk: row for row in found} for model, found in rows.items()}
    unreadable = []
    bad: dict[type[models.Model], set[Any]] = defaultdict(set)
    for model, found in rows.items():
        for row in found:
            problem = (model is not USER and first_problem(row)) or _link(
                row, known, query_missing=query_missing
            )
            if problem:
                bad[model].add(row.pk)
                unreadable.append(_unreadable(row, *problem))
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
    readable = {
        model: [row for row in found if row.pk not in bad[model]] for model, found in rows.items()
    }
    return readable, unreadable


def is_readable(row: models.Model) -> bool:
    """Read the row from the database again; return whether all its fields can be read."""
    same = type(row)._default_manager.filter(pk=row.pk)  # noqa: SLF001 - Django documents this name
    return all(first_problem(found) is None for found in fetch_rows(same))


def first_problem(row: models.Model) -> tuple[str, str] | None:
    """Return name and reason of the first unreadable field; None if all fields can be read."""
    for field in row._meta.concrete_fields:  # noqa: SLF001 - Django documents this name
        try:
            _check_value(field, row.__dict__.get(field.attname, MISSING))
        except ValidationError as error:
            return field.name, " ".join(error.messages)
        except Exception:  # noqa: BLE001 - a value that makes a check fail is invalid
            return field.name, WRONG_TYPE
    try:
        if isinstance(row, Upstream):
            row.check_together()
        elif not isinstance(row, Route):  # ``Route.clean`` compares the row with others
            row.clean()
    except ValidationError as error:
        by_field = getattr(error, "message_dict", None) if hasattr(error, "error_dict") else None
        name, messages = next(iter(by_field.items())) if by_field else ("row", error.messages)
        return name, " ".join(messages)
    except Exception:  # noqa: BLE001 - a value that makes ``clean`` fail is invalid
        return "row", WRONG_TYPE
    return None


def _check_value(field: "models.Field[Any, Any]", value: Any) -> None:
    """Raise ValidationError unless the field could have stored this value.

    ``field.clean`` is not used: it would query each foreign key, and it would reject the empty
    prefix of a key without a secret, which is allowed.
    """
    if value is MISSING or (value is None and not field.null):
        raise ValidationError(WRONG_TYPE)
    if value is None:
        return
    if field.to_python(value) != value:
        raise ValidationError(WRONG_TYPE)
    if field.choices and value not in dict(field.flatchoices):
        raise ValidationError(f"{value!r} is not one of the choices")
    field.run_validators(value)


def _link(
    row: models.Model, known: Mapping[Any, Mapping[Any, Any]], *, query_missing: bool
) -> tuple[str, str] | None:
    """Set each related object of the row.

    Return the first field whose related row does not exist, and the reason.
    """
    for field in row._meta.concrete_fields:  # noqa: SLF001 - Django documents this name
        pk, related = row.__dict__.get(field.attname), cast("Any", field.related_model)
        if related not in known or pk is None:
            continue
        other = known[related].get(pk)
        if other is None and query_missing:
            other = related.objects.filter(pk=pk).first()
        if other is None:
            return field.name, NOT_FOUND
        setattr(row, field.name, other)
    return None


def _links(row: models.Model) -> Iterator[tuple[Any, Any]]:
    """Yield the model and the primary key of each row that this row refers to."""
    for field in row._meta.concrete_fields:  # noqa: SLF001 - Django documents this name
        if field.related_model:
            yield field.related_model, row.__dict__.get(field.attname)


def _pays(budget: Any, key: Any) -> bool:
    """Return whether the budget covers the key. Unreadable fields may be missing from both."""
    owners, payer = budget.__dict__, key.__dict__
    pairs = (("team_id", "team_id"), ("key_id", "id"), ("user_id", "user_id"))
    return any(
        owners.get(owner_field) is not None and owners.get(owner_field) == payer.get(key_field)
        for owner_field, key_field in (*pairs, ("key_id", "successor_id"))
    )


def _unreadable(row: Any, field: str, why: str) -> UnreadableRow:
    meta = row._meta  # noqa: SLF001 - Django documents this name
    return UnreadableRow(
        kind=str(meta.verbose_name),
        id=row.pk,
        field=field,
        why=why,
        has_form=not row.get_deferred_fields(),
        model=str(meta.model_name),
    )


class SkippedRows:
    """The rows that the gateway of this process excluded when it last read its configuration."""

    def __init__(self) -> None:
        self.rows: Sequence[UnreadableRow] = ()

    def update(self, rows: Sequence[UnreadableRow]) -> None:
        """Replace the list of excluded rows. A row is logged only when it is new in the list."""
        logged = set(map(str, self.rows))
        for row in rows:
            if str(row) not in logged:
                log.error("%s: it is left out, and whatever depends on it", row)
        self.rows = tuple(rows)


SKIPPED: Final = SkippedRows()
