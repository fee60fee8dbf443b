"""Compare the rows of the database with a bridge.toml, and write in bulk those that differ."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db.models import Model, QuerySet
from django.db.models.deletion import Collector
from django.db.models.signals import post_save

from proxy.audit_log.bulk import Batch
from proxy.audit_log.field_changes import BEFORE, fields_of
from proxy.decode_errors import did_you_mean
from proxy.models import Route
from proxy.models.setup.columns import SEALED
from proxy.secrets import ConfigError

from .dump import toml_value

Sign = Literal["+", "~", "-", "="]
"""``+`` created, ``~`` changed, ``-`` removed, ``=`` not applied (the reason is in ``detail``)."""
BATCH: Final = 500
WORDS: Final[Mapping[str, str]] = {
    "digest": "secret",  # the value is secret
    "prefix": "secret",
    "url": "url",  # the plan does not show the value, which may contain a token
    "dropped": "named again",
    "managed": "now managed by the file",
}
"""Field name -> its text in the plan, for fields whose old and new values are not shown."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change that applying a bridge.toml makes, shown as a line of the plan."""

    sign: Sign
    kind: str
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.sign} {self.kind} {self.name}" + (f": {self.detail}" if self.detail else "")


class DependentEntry(ConfigError):
    """An entry of the file refers to another entry, which is a mistake itself."""


class Plan:
    """The changes and the mistakes of a file."""

    def __init__(self, batch: Batch, wrong: Iterable[tuple[str, str | None]] = ()) -> None:
        self.changes: list[Change] = []
        self.mistakes: list[str] = []
        self.names = batch.names
        # Kind and name of the entries with a mistake; None: the name is not known.
        self._wrong: set[tuple[str, str | None]] = set(wrong)

    def add(self, sign: Sign, kind: str, name: str, detail: str = "") -> None:
        self.changes.append(Change(sign, kind, name, detail))

    @contextlib.contextmanager
    def entry(self, kind: str, name: str) -> Iterator[None]:
        """Collect the mistake of one entry of the file, which is not written completely then."""
        try:
            yield
        except ConfigError as error:
            self._wrong.add((kind, name))
            if not isinstance(error, DependentEntry):
                self.mistakes.append(str(error))

    def find(self, kind: str, rows: Mapping[str, Any], name: str, where: str) -> Any:
        """Return the row with this name. Raises ConfigError, which suggests a similar name."""
        if name in rows:
            return rows[name]
        is_wrong = not self._wrong.isdisjoint({(kind, name), (kind, None)})
        error = DependentEntry if is_wrong else ConfigError
        raise error(f"{where}: no {kind} {name!r}{did_you_mean(name, rows)}")


class Table:
    """The rows of one model by name, and which of them to write."""

    def __init__(self, plan: Plan, rows: "QuerySet[Any]", name: Callable[[Any], Any] = str) -> None:
        self.plan, self.model = plan, rows.model
        self.kind = str(rows.model._meta.verbose_name)  # noqa: SLF001 - documented by Django
        self.rows: dict[Any, Any] = {}
        for row in rows:
            self.rows.setdefault(name(row), row)  # the first of several budgets
        self.named: set[Any] = set()
        """The rows that the file names."""
        self._new: list[Any] = []
        self._changed: dict[Any, list[str]] = {}
        self._remember(self.rows.values())

    def put(self, key: Any, values: Mapping[str, Any], where: str, label: str = "") -> Any:
        """Set the values of the row that ``key`` names, which the file manages from now on.

        ``where``: path in the file, for errors. ``label``: the row in the plan.
        """
        row, label = self.rows.get(key), label or str(key)
        self.named.add(key)
        if row is None:
            row = self.model(**values, managed=True)
            _check(row, where)
            self.rows[key] = row
            self._new.append(row)
            self.plan.add("+", self.kind, label)
            return row
        if row.pk is None:
            return row  # another entry has described it, which is a mistake
        if details := self.set(row, {**values, "managed": True}):
            _check(row, where)
            self.plan.add("~", self.kind, label, ", ".join(dict.fromkeys(details)))
        return row

    def set(self, row: Any, values: Mapping[str, Any]) -> list[str]:
        """Set the values that differ; return the differences in words."""
        old = {name: _plain(getattr(row, name)) for name in values}
        differing = [name for name, value in values.items() if old[name] != value]
        if differing:
            if not hasattr(row, BEFORE):
                setattr(row, BEFORE, fields_of(row))
            for name in differing:
                setattr(row, name, values[name])
            self._changed.setdefault(row, []).extend(differing)
        return [_difference(name, old[name], values[name]) for name in differing]

    def left_out(self) -> list[tuple[Any, Any]]:
        """Return the managed rows that the file no longer has, with their names."""
        return [
            (key, row) for key, row in self.rows.items() if row.managed and key not in self.named
        ]

    def unmanage(self, row: Any, name: str, why: str, **values: Any) -> None:
        """Keep a row that is no longer in the file, because ledger rows refer to it."""
        self.set(row, {"managed": False, **values})
        self.plan.add("-", self.kind, name, why)

    def write(self) -> None:
        """Write the changed and the new rows, and send the signals of each."""
        groups: dict[tuple[str, ...], list[Any]] = {}
        for row, names in self._changed.items():
            groups.setdefault(tuple(dict.fromkeys(names)), []).append(row)
        for fields, rows in groups.items():
            names = list(fields)
            values = {name: getattr(rows[0], name) for name in names}
            if all(getattr(row, name) == values[name] for row in rows for name in names):
                for pks in _batches([row.pk for row in rows]):
                    self.model.objects.filter(pk__in=pks).update(**values)
            else:
                self.model.objects.bulk_update(rows, names, BATCH)
            for row in rows:
                _send(row, created=False, update_fields=frozenset(names))
        self.model.objects.bulk_create(self._new, BATCH)
        self._remember(self._new)
        for row in self._new:
            _send(row, created=True, update_fields=None)
        self._new, self._changed = [], {}

    def create(self, rows: Iterable[Any]) -> None:
        self._new += rows
        self.write()

    def delete_left_out(self, label: Callable[[Any], str] = str) -> None:
        """Delete the managed rows that the file no longer has."""
        gone = self.left_out()
        for name, _ in gone:
            self.plan.add("-", self.kind, label(name))
        self.delete(row for _, row in gone)

    def delete(self, rows: Iterable[Any]) -> None:
        """Delete rows and what depends on them. The signals get these rows, with relations."""
        for batch in _batches(list(rows)):
            collector = Collector("default")
            collector.collect(batch)
            collector.delete()

    def _remember(self, rows: Iterable[Any]) -> None:
        self.plan.names.update({(self.model, row.pk): str(row) for row in rows})


def _batches(values: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(values), BATCH):
        yield values[start : start + BATCH]


def _send(row: Model, **options: Any) -> None:
    post_save.send(type(row), instance=row, raw=False, using="default", **options)


def _check(row: Any, where: str) -> None:
    """Raise ConfigError for columns that do not fit together."""
    if isinstance(row, Route):
        return  # ``Route.clean`` queries for twins, which a file cannot have
    try:
        row.clean()
    except ValidationError as wrong:
        found = getattr(wrong, "error_dict", None) and wrong.message_dict
        by_field = found or {NON_FIELD_ERRORS: wrong.messages}
        ((name, messages), *_) = by_field.items()
        path = "" if name == NON_FIELD_ERRORS else f".{name}"
        raise ConfigError(f"{where}{path}: {' '.join(messages)}") from None


def _plain(value: Any) -> Any:
    """Return a value from the database in the type of the file's values.

    PostgreSQL returns bytes as memoryview.
    """
    return bytes(value) if isinstance(value, memoryview) else value


def _difference(field: str, old: Any, new: Any) -> str:
    if field in WORDS:
        return WORDS[field]
    return f"{field} {_shortened(old)} -> {_shortened(new)}"


def _shortened(value: Any) -> str:
    if isinstance(value, dict) and SEALED in value:
        return "a stored secret"
    if value in (None, "", [], {}):
        return "none"
    text = toml_value(value) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
