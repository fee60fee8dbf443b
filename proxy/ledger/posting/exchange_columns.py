"""Convert journal records to column values of an Exchange that both databases can store."""

import ipaddress
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from operator import attrgetter
from types import NoneType, SimpleNamespace
from typing import Any, Final

import msgspec
from django.db import models

from proxy.encryption.bodies import has_key, seal
from proxy.ledger.database.bulk_sql import padded_keys, select
from proxy.ledger.journal.records import CloseRecord, OpenRecord
from proxy.ledger.usage.pricing import PriceList, charge_of, source_of
from proxy.models import Exchange, Outcome, State
from proxy.models.encrypted_text import BodyTextField
from proxy.models.setup.prices import DIMENSIONS

NUL: Final = "\x00"  # PostgreSQL cannot store this character in a text

COUNTED: Final = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "reasoning")
SOURCED: Final = ("input", "output", "cache_read", "reasoning")
FIELDS: Final = {field.name: field for field in Exchange._meta.concrete_fields}  # noqa: SLF001 -- Django's documented model API
# Columns from the open record that are replaced if the close record has a value
OVERRIDDEN: Final = ("model_upstream", "upstream", "dialect")
CONVERTED: Final = frozenset({"id", "created", "finished", "ip", "price", "cost_nanousd"})
"""The columns that are not the record's field of this name as it is."""
FROM_OPEN: Final = tuple(n for n in OpenRecord.__struct_fields__ if n in FIELDS.keys() - CONVERTED)
FROM_CLOSE: Final = tuple(
    name
    for name in CloseRecord.__struct_fields__
    if name in FIELDS.keys() - CONVERTED.union(OVERRIDDEN)
)
BOUNDS: "Final[Mapping[type, int]]" = {
    models.PositiveSmallIntegerField: 32767,
    models.PositiveIntegerField: 2**31 - 1,
    models.BigIntegerField: 2**63 - 1,
    models.PositiveBigIntegerField: 2**63 - 1,
}
OUTCOMES: Final = frozenset(Outcome.values)
_of_open: Final = attrgetter(*FROM_OPEN)
_of_close: Final = attrgetter(*FROM_CLOSE)
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class Row(SimpleNamespace):
    """The columns of one ledger row, as attributes with the names of the model's fields.

    It replaces a model instance, of which only the column values would be needed and which takes
    thirty times as long to create (45 us).
    """

    @property
    def pk(self) -> str:
        return str(self.id)


AnyRow = Row | Exchange


def blank_row(exchange_id: str) -> Row:
    """Return a row with default values. All rows share the same lists and dicts: replace them."""
    return Row(**DEFAULTS | {"id": exchange_id})


def existing_rows(ids: Iterable[str]) -> dict[str, Row]:
    """Return those rows of ``ids`` that are in the database, by id.

    Usually there are none, because a request that ends soon is written only once, when it is
    closed. The raw query first avoids 6 function calls of the ORM for each id.
    """
    known = [pk for (pk,) in select(Exchange, ("id",), "id", list(ids))]
    if not known:
        return {}
    rows = Exchange.objects.filter(pk__in=padded_keys(known)).values()
    return {columns["id"]: Row(**columns) for columns in rows}


def to_datetime(seconds: float) -> datetime:
    """Return the UTC datetime of a Unix time. Raises ValueError outside of the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OSError, OverflowError) as exc:
        raise ValueError(f"{seconds!r} is not a valid time") from exc


def columns_from_open(record: OpenRecord) -> dict[str, Any]:
    """Return the columns of a ledger row that come from its open record."""
    return {
        **dict(zip(FROM_OPEN, _of_open(record), strict=True)),
        "id": record.id,
        "state": State.OPEN.value,
        "created": to_datetime(record.created),
        "ip": _address(record.ip),
        # The reserved tokens count until the row is closed; if the journal is lost, they stay.
        **(token_columns(record.worst_case) if record.worst_case else {}),
    }


def columns_from_close(record: CloseRecord, row: AnyRow, prices: PriceList) -> dict[str, Any]:
    """Return the columns of a ledger row that come from its close record.

    ``row``: the row to be closed.
    """
    values = dict(zip(FROM_CLOSE, _of_close(record), strict=True))
    for name in OVERRIDDEN:
        if value := getattr(record, name):
            values[name] = value
    values["state"] = State.CLOSED.value
    if values["outcome"] not in OUTCOMES:
        values["detail"] = f"unknown outcome {record.outcome!r}"
        values["outcome"] = Outcome.GATEWAY_ERROR.value
    values["finished"] = to_datetime(record.finished)
    values |= token_columns(record.usage) | columns_from_message(record.answer)
    price = record.price
    if price is None:
        price = prices.of_usage(
            values.get("upstream", row.upstream),
            values.get("model_upstream", row.model_upstream),
            row.created.date(),
            record.usage,
        )
    cost = record.cost_nanousd
    if record.price is None or cost is None:
        cost = charge_of(record.usage, price, record.attempts)
    values["cost_nanousd"], values["price"] = cost, None if cost is None else price
    return values


def token_columns(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with token counts (None: unknown) and with the sources of the counts."""
    columns = {f"{name}_tokens": usage.get(name) for name in COUNTED}
    for name in SOURCED:
        columns[f"{name}_source"] = source_of(usage, name)
    written = source_of(usage, "cache_write_5m")
    if written == "missing":
        written = source_of(usage, "cache_write_1h")
    columns["cache_write_source"] = written
    columns["web_searches"] = usage.get("web_searches")
    for name in DIMENSIONS:
        columns[name] = usage.get(name) or ""
    columns["iterations"] = usage.get("iterations") or []
    return columns


def columns_from_message(answer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the columns of a ledger row that come from the response, an Anthropic message."""
    if answer is None:
        return {}
    blocks = [block for block in answer.get("content") or () if isinstance(block, dict)]
    names = [str(block.get("name")) for block in blocks if block.get("type") == "tool_use"]
    return {
        "tool_calls": len(names),
        "tool_names": sorted(set(names)),
        "has_thinking": any(b.get("type") in ("thinking", "redacted_thinking") for b in blocks),
    }


def set_columns(row: AnyRow, values: Mapping[str, Any]) -> None:
    """Set columns of the row, converted to values that each database returns as they were stored.

    The hash chain digests the values, so the database must not change them. Nearly all values need
    no conversion, so the checks below avoid function calls, and all texts are checked as one
    string.
    """
    columns, texts = vars(row), ""
    for name, value in values.items():
        kind = value.__class__
        if name not in CONVERTERS or (not value and kind in STORABLE_IF_EMPTY):
            columns[name] = value
        elif kind is str and name in MAX_LENGTHS:
            columns[name] = text = value[: MAX_LENGTHS[name]]
            texts += text
        elif (kind is int and name in MAX_INTEGERS and 0 < value <= MAX_INTEGERS[name]) or (
            kind is float and name in FLOATS and value > 0
        ):
            columns[name] = value
        else:
            columns[name] = CONVERTERS[name](value)
    # This is false if there is a character to replace, or a line break.
    if not texts.isprintable():
        columns.update(
            {name: sanitise(columns[name]) for name in MAX_LENGTHS.keys() & values.keys()}
        )
    if has_key():
        columns.update({name: seal(columns[name]) for name in BODY_TEXTS & values.keys()})


def _text(limit: int | None, value: Any) -> str:
    return str(sanitise(str(value))[:limit])


def _integer(limit: int, value: Any) -> int:
    return max(0, min(int(value), limit))


def _float(value: Any) -> float:
    return max(0.0, float(value))


def _json(value: Any) -> Any:
    """Return the value encoded as JSON and decoded again.

    That is ten times as fast as visiting each nested value.
    """
    try:
        text = _encode(value)
    except (ValueError, OverflowError):  # an unpaired surrogate or a number above 64 bits
        return sanitise(msgspec.to_builtins(value))
    return sanitise(_decode(text)) if b"\\u0000" in text else _decode(text)


def _fields(*kinds: "type[models.Field[Any, Any]]") -> dict[str, "models.Field[Any, Any]"]:
    return {name: field for name, field in FIELDS.items() if isinstance(field, kinds)}


# The value must not be a float, because -0.0 must become 0.0.
STORABLE_IF_EMPTY: Final = frozenset({NoneType, str, int, list, dict})
MAX_LENGTHS: Final = {
    n: field.max_length for n, field in _fields(models.CharField, models.TextField).items()
}
MAX_INTEGERS: Final = {
    n: BOUNDS.get(type(f), 2**31 - 1) for n, f in _fields(models.IntegerField).items()
}
BODY_TEXTS: Final = _fields(BodyTextField).keys()
FLOATS: Final = frozenset(_fields(models.FloatField))
CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{name: partial(_text, limit) for name, limit in MAX_LENGTHS.items()},
    **{name: partial(_integer, limit) for name, limit in MAX_INTEGERS.items()},
    **dict.fromkeys(FLOATS, _float),
    **dict.fromkeys(_fields(models.JSONField), _json),
}
"""Functions that convert a value for its column; columns without one store any value unchanged."""
DEFAULTS: Final = {name: field.get_default() for name, field in FIELDS.items()}


def sanitise(value: Any) -> Any:
    """Replace characters and numbers that a database cannot store, at any depth of the value.

    NUL and unpaired surrogates in texts are replaced; NaN and infinity become None.
    """
    if isinstance(value, str):
        return value.replace(NUL, "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {sanitise(str(key)): sanitise(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [sanitise(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@lru_cache(maxsize=1024)  # clients repeat their addresses
def _address(text: str | None) -> str | None:
    try:
        return str(ipaddress.ip_address(text)) if text else None
    except ValueError:
        return None
