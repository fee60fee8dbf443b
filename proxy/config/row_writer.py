"""Write database rows while a bridge.toml is applied, and list the changes (the plan)."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from django.contrib.auth import get_user_model
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError

from proxy.decode_errors import did_you_mean
from proxy.models import ApiKey, Budget, Price, Route, Team, Upstream, Webhook
from proxy.models.setup.upstreams import SEALED
from proxy.secrets import ConfigError

from .dump import toml_value

Row = TypeVar("Row", ApiKey, Budget, Price, Route, Team, Upstream, Webhook)
Named = TypeVar("Named", Team, Upstream)
Sign = Literal["+", "~", "-", "="]
"""``+`` created, ``~`` changed, ``-`` removed, ``=`` not applied (the reason is in ``detail``)."""

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


class ConfigWriter:
    """Writes the rows that differ from the file, and collects the changes and the mistakes."""

    def __init__(self, wrong: Iterable[tuple[str, str | None]] = ()) -> None:
        self.changes: list[Change] = []
        self.mistakes: list[str] = []
        # Kind and name of the entries with a mistake; None: the name is not known.
        self._wrong: set[tuple[str, str | None]] = set(wrong)

    @contextlib.contextmanager
    def entry(self, kind: str, name: str) -> Iterator[None]:
        """Collect the mistake of one entry of the file, which is not written completely then."""
        try:
            yield
        except ConfigError as error:
            self._wrong.add((kind, name))
            if not isinstance(error, DependentEntry):
                self.mistakes.append(str(error))

    def unknown(self, kind: str, name: str, where: str, known: Iterable[str]) -> ConfigError:
        """Return the error for an unknown name, with a similar name; none for a mistake's name."""
        is_wrong = not self._wrong.isdisjoint({(kind, name), (kind, None)})
        error = DependentEntry if is_wrong else ConfigError
        return error(f"{where}: no {kind} {name!r}{did_you_mean(name, known)}")

    def add_plan_line(self, sign: Sign, kind: str, name: str, detail: str = "") -> None:
        self.changes.append(Change(sign, kind, name, detail))

    def put(
        self,
        model: type[Row],
        identity: Mapping[str, Any],
        fields: Mapping[str, Any],
        where: str,
        name: str,
    ) -> Row:
        """Create a row or update its differing fields, and mark it as managed by the file.

        ``identity``: fields that identify the row. ``where``: path in the file, for errors.
        """
        kind = kind_of(model)
        row = model.objects.filter(**identity).first()
        if row is None:
            row = model(**identity, **fields, managed=True)
            self._check(row, where)
            row.save()
            self.add_plan_line("+", kind, name)
            return row
        expected = {**fields, "managed": True}
        old = {field: getattr(row, field) for field in expected}
        differing = [field for field, value in expected.items() if _plain(old[field]) != value]
        if not differing:
            return row
        for field in differing:
            setattr(row, field, expected[field])
        self._check(row, where)
        row.save(update_fields=differing)
        details = [_difference(field, old[field], expected[field]) for field in differing]
        self.add_plan_line("~", kind, name, ", ".join(dict.fromkeys(details)))
        return row

    def find(self, model: type[Named], name: str, where: str) -> Named:
        """Return the row with this name.

        Raises ConfigError, which suggests a similar name, if there is no such row.
        """
        row = model.objects.filter(name=name).first()
        if row is None:
            known = model.objects.values_list("name", flat=True)
            raise self.unknown(kind_of(model), name, where, known)
        return row

    def unmanage(self, row: Row, name: str, why: str, **fields: Any) -> None:
        """Mark a row that is no longer in the file as unmanaged, and set ``fields``.

        The row is not deleted, because ledger rows refer to it.
        """
        for field, value in fields.items():
            setattr(row, field, value)
        row.managed = False
        row.save(update_fields=["managed", *fields])
        self.add_plan_line("-", kind_of(type(row)), name, why)

    def delete(self, row: Row, name: str) -> None:
        row.delete()
        self.add_plan_line("-", kind_of(type(row)), name)

    def _check(self, row: Row, where: str) -> None:
        try:
            row.clean()
        except ValidationError as wrong:
            by_field: dict[str, list[str]] = {NON_FIELD_ERRORS: wrong.messages}
            if hasattr(wrong, "error_dict"):
                by_field = wrong.message_dict
            paths = {name: "" if name == NON_FIELD_ERRORS else f".{name}" for name in by_field}
            texts = [f"{where}{paths[name]}: {' '.join(by_field[name])}" for name in by_field]
            self.mistakes += texts[:-1]
            raise ConfigError(texts[-1]) from None


def find_user(name: str, where: str) -> Any:
    """Return the user with this name. Raises ConfigError, which suggests a similar name."""
    users = get_user_model().objects
    found = users.filter(username=name).first()
    if found is None:
        known = users.values_list("username", flat=True)
        raise ConfigError(f"{where}: no user {name!r}{did_you_mean(name, known)}")
    return found


def kind_of(model: type[Any]) -> str:
    return {"ApiKey": "key"}.get(model.__name__, model.__name__.lower())


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
