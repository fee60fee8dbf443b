"""Records -> the fields of an Exchange, fitted to what the database can hold."""

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

from proxy.models import Exchange, Outcome, State

from .pricing import PriceList, charge_of, source_of
from .records import CloseRecord, OpenRecord
from .statements import evened, select

NUL: Final = "\x00"  # PostgreSQL's text cannot hold it

FROM_OPEN: Final = (
    "worker",
    "team",
    "key_id",
    "key_name",
    "user",
    "session_id",
    "agent_id",
    "parent_agent_id",
    "user_agent",
    "client_name",
    "client_version",
    "api_version",
    "betas",
    "tags",
    "traceparent",
    "endpoint",
    "stream",
    "model_requested",
    "model_upstream",
    "upstream",
    "dialect",
    "request_bytes",
    "message_count",
    "has_images",
)
FROM_CLOSE: Final = (
    "outcome",
    "status",
    "stop_reason",
    "error_type",
    "error_message",
    "error_source",
    "detail",
    "queue_ms",
    "ttft_ms",
    "total_ms",
    "upstream_ms",
    "overhead_ms",
    "upstream_status",
    "upstream_request_id",
    "attempts",
    "notes",
    "unknown_events",
    "response_bytes",
    "delivered",
    "tool_calls",
    "tool_names",
    "has_thinking",
)
OVERRIDDEN: Final = ("model_upstream", "upstream", "dialect")  # the close knows better, if it does
COUNTED: Final = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "reasoning")
SOURCED: Final = ("input", "output", "cache_read", "reasoning")
FIELDS: Final = {field.name: field for field in Exchange._meta.concrete_fields}  # noqa: SLF001 -- Django's documented model API
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
    """An exchange's columns, by the names of the model's fields, and nothing else.

    The drainer makes one for each exchange. A model instance takes thirty times as long to make
    (45 us): who only adds up and writes needs none.
    """

    @property
    def pk(self) -> str:
        return str(self.id)


AnyRow = Row | Exchange


def blank(exchange_id: str) -> Row:
    """A row with every column at its default; lists among them are shared, and never changed."""
    return Row(**DEFAULTS | {"id": exchange_id})


def there(ids: Iterable[str]) -> dict[str, Row]:
    """The rows that the database has, by id.

    Mostly none: an exchange that ended soon is posted once. To hear that takes 6 calls of the ORM
    for each of them, and none this way.
    """
    known = [pk for (pk,) in select(Exchange, ("id",), "id", list(ids))]
    if not known:
        return {}
    found = Exchange.objects.filter(pk__in=evened(known)).values()
    return {columns["id"]: Row(**columns) for columns in found}


def moment(seconds: float) -> datetime:
    """Raises ValueError beyond the years that exist."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OSError, OverflowError) as exc:
        raise ValueError(f"{seconds!r} is no point in time") from exc


def opened(record: OpenRecord) -> dict[str, Any]:
    """The fields that an open record says."""
    return {
        **dict(zip(FROM_OPEN, _of_open(record), strict=True)),
        "id": record.id,
        "state": State.OPEN.value,
        "created": moment(record.created),
        "ip": _address(record.ip),
        # Until the row is closed, and for good if the process dies and its spool is lost.
        **(tokens(record.worst_case) if record.worst_case else {}),
    }


def closed(record: CloseRecord, row: AnyRow, prices: PriceList) -> dict[str, Any]:
    """The fields that a close record says, on top of the row it closes."""
    values = dict(zip(FROM_CLOSE, _of_close(record), strict=True))
    for name in OVERRIDDEN:
        if value := getattr(record, name):
            values[name] = value
    values["state"] = State.CLOSED.value
    if values["outcome"] not in OUTCOMES:
        values["detail"] = f"unknown outcome {record.outcome!r}"
        values["outcome"] = Outcome.GATEWAY_ERROR.value
    values["finished"] = moment(record.finished)
    values |= tokens(record.usage) | answered(record.answer)
    price = record.price
    if price is None:
        price = prices.at(
            values.get("upstream", row.upstream),
            values.get("model_upstream", row.model_upstream),
            row.created.date(),
        )
    values["cost_nanousd"], values["price"] = _charged(record, price)
    return values


def _charged(
    record: CloseRecord, price: dict[str, Any] | None
) -> tuple[int | None, dict[str, Any] | None]:
    """Nano-dollars, and the price they come from; the gateway's own sum wins."""
    if record.price is not None and record.cost_nanousd is not None:
        return record.cost_nanousd, record.price
    cost = charge_of(record.usage, price, record.attempts)
    return (None, None) if cost is None else (cost, price)


def tokens(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Token columns and who said them; unknown stays null."""
    columns = {f"{name}_tokens": usage.get(name) for name in COUNTED}
    for name in SOURCED:
        columns[f"{name}_source"] = source_of(usage, name)
    written = source_of(usage, "cache_write_5m")
    if written == "missing":
        written = source_of(usage, "cache_write_1h")
    columns["cache_write_source"] = written
    columns["web_searches"] = usage.get("web_searches")
    columns["service_tier"] = usage.get("service_tier") or ""
    return columns


def answered(answer: Mapping[str, Any] | None) -> dict[str, Any]:
    """What can be read off the folded answer."""
    if answer is None:
        return {}
    blocks = [block for block in answer.get("content") or () if isinstance(block, dict)]
    names = [str(block.get("name")) for block in blocks if block.get("type") == "tool_use"]
    return {
        "tool_calls": len(names),
        "tool_names": sorted(set(names)),
        "has_thinking": any(b.get("type") in ("thinking", "redacted_thinking") for b in blocks),
    }


def apply(row: AnyRow, values: Mapping[str, Any]) -> None:
    """Set the columns, each fitted to what every database takes and gives back the same.

    The seal is made of them. Nearly all fit as they are, which is seen without a call; all texts
    are looked at as one.
    """
    columns, said = vars(row), ""
    for name, value in values.items():
        kind = value.__class__
        if name not in FIT or (not value and kind in FIT_EMPTY):
            columns[name] = value
        elif kind is str and name in LONGEST:
            columns[name] = text = value[: LONGEST[name]]
            said += text
        elif (kind is int and name in MOST and 0 < value <= MOST[name]) or (
            kind is float and name in REALS and value > 0
        ):
            columns[name] = value
        else:
            columns[name] = FIT[name](value)
    if not said.isprintable():  # line breaks are not, either, nor is what no database takes
        columns.update({name: clean(columns[name]) for name in LONGEST.keys() & values.keys()})


def _text(most: int | None, value: Any) -> str:
    return str(clean(str(value))[:most])


def _whole(most: int, value: Any) -> int:
    return max(0, min(int(value), most))


def _real(value: Any) -> float:
    return max(0.0, float(value))


def _json(value: Any) -> Any:
    """Through JSON and back, which takes a tenth of walking over it."""
    try:
        text = _encode(value)
    except (ValueError, OverflowError):  # a lone surrogate, a number beyond 64 bits
        return clean(msgspec.to_builtins(value))
    return clean(_decode(text)) if b"\\u0000" in text else _decode(text)


def _fields(*kinds: "type[models.Field[Any, Any]]") -> dict[str, "models.Field[Any, Any]"]:
    return {name: field for name, field in FIELDS.items() if isinstance(field, kinds)}


FIT_EMPTY: Final = frozenset({NoneType, str, int, list, dict})  # not float: -0.0 is none
LONGEST: Final = {
    n: field.max_length for n, field in _fields(models.CharField, models.TextField).items()
}
MOST: Final = {n: BOUNDS.get(type(f), 2**31 - 1) for n, f in _fields(models.IntegerField).items()}
REALS: Final = frozenset(_fields(models.FloatField))
FIT: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{name: partial(_text, most) for name, most in LONGEST.items()},
    **{name: partial(_whole, most) for name, most in MOST.items()},
    **dict.fromkeys(REALS, _real),
    **dict.fromkeys(_fields(models.JSONField), _json),
}
"""What makes a value fit; a column without one takes whatever comes."""
DEFAULTS: Final = {name: field.get_default() for name, field in FIELDS.items()}


def clean(value: Any) -> Any:
    """Text without NUL and lone surrogates, numbers that are numbers, at any depth."""
    if isinstance(value, str):
        return value.replace(NUL, "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {clean(str(key)): clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [clean(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@lru_cache(maxsize=1024)  # a caller's address comes with each of its requests
def _address(text: str | None) -> str | None:
    try:
        return str(ipaddress.ip_address(text)) if text else None
    except ValueError:
        return None
