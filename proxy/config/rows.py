"""What may happen to one row while a bridge.toml is applied; each change is told as a plan line."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError

from proxy.complaints import did_you_mean
from proxy.models import ApiKey, Budget, Price, Route, Team, Upstream
from proxy.models.routes import SEALED
from proxy.secrets import ConfigError

Row = TypeVar("Row", ApiKey, Budget, Price, Route, Team, Upstream)
Named = TypeVar("Named", Team, Upstream)
Sign = Literal["+", "~", "-", "="]
"""New, changed, gone; ``=``: what the file wants is not done, and why."""

WORDS: Final[Mapping[str, str]] = {
    "digest": "secret",  # that it changed, not into what
    "prefix": "secret",
    "dropped": "named again",
    "managed": "now managed by the file",
}
"""Fields whose change the plan reports by these words, without values."""


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a plan."""

    sign: Sign
    kind: str
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.sign} {self.kind} {self.name}" + (f": {self.detail}" if self.detail else "")


class Rows:
    """Writes rows only where they differ, and remembers what it changed."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def tell(self, sign: Sign, kind: str, name: str, detail: str = "") -> None:
        self.changes.append(Change(sign, kind, name, detail))

    def put(
        self,
        model: type[Row],
        identity: Mapping[str, Any],
        fields: Mapping[str, Any],
        where: str,
        name: str,
    ) -> Row:
        """Make the row, or change what differs in it; from then on the file manages it."""
        kind = kind_of(model)
        row = model.objects.filter(**identity).first()
        if row is None:
            row = model(**identity, **fields, managed=True)
            self._check(row, where)
            row.save()
            self.tell("+", kind, name)
            return row
        wanted = {**fields, "managed": True}
        old = {field: getattr(row, field) for field in wanted}
        differing = [field for field, value in wanted.items() if _plain(old[field]) != value]
        if not differing:
            return row
        for field in differing:
            setattr(row, field, wanted[field])
        self._check(row, where)
        row.save(update_fields=differing)
        told = [_difference(field, old[field], wanted[field]) for field in differing]
        self.tell("~", kind, name, ", ".join(dict.fromkeys(told)))
        return row

    def find(self, model: type[Named], name: str, where: str) -> Named:
        """The row that the file refers to by name; raises ConfigError with the nearest one."""
        row = model.objects.filter(name=name).first()
        if row is None:
            known = model.objects.values_list("name", flat=True)
            raise ConfigError(f"{where}: no {kind_of(model)} {name!r}{did_you_mean(name, known)}")
        return row

    def release(self, row: Row, name: str, why: str, **fields: Any) -> None:
        """Leave the row to the admin: the file no longer names it, the ledger still does."""
        for field, value in fields.items():
            setattr(row, field, value)
        row.managed = False
        row.save(update_fields=["managed", *fields])
        self.tell("-", kind_of(type(row)), name, why)

    def delete(self, row: Row, name: str) -> None:
        row.delete()
        self.tell("-", kind_of(type(row)), name)

    def _check(self, row: Row, where: str) -> None:
        try:
            row.clean()
        except ValidationError as wrong:
            told = wrong.message_dict if hasattr(wrong, "error_dict") else {}
            field = next(iter(told), NON_FIELD_ERRORS)
            path = where if field == NON_FIELD_ERRORS else f"{where}.{field}"
            raise ConfigError(f"{path}: {' '.join(wrong.messages)}") from None


def kind_of(model: type[Any]) -> str:
    return {"ApiKey": "key"}.get(model.__name__, model.__name__.lower())


def _plain(value: Any) -> Any:
    """A stored value as the file would give it; PostgreSQL returns bytes as a memoryview."""
    return bytes(value) if isinstance(value, memoryview) else value


def _difference(field: str, old: Any, new: Any) -> str:
    if field in WORDS:
        return WORDS[field]
    return f"{field} {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    if isinstance(value, dict) and SEALED in value:
        return "a stored secret"
    text = str(value) if value not in (None, "", [], {}) else "none"
    return text if len(text) <= 60 else f"{text[:57]}..."
