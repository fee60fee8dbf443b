"""bridge.toml, from text to a checked ``BridgeFile``; every complaint names the path."""

import datetime as dt
import difflib
import ipaddress
import re
import tomllib
import zoneinfo
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from proxy.secrets import ConfigError

from .schema import BridgeFile, Budget

Read = TypeVar("Read")

UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`(?: - at `\$(?P<at>.*)`)?$")
STEP = re.compile(r"\.(?P<key>\w+)|\[(?P<place>\d+)\]")
SECRET = re.compile(r"\.(api_key|secret|webhook_secret)\b")
AT = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$(?P<at>.*)`)?$", re.DOTALL)


def read_file(path: Path) -> BridgeFile:
    """Raises ConfigError: the file is missing, no TOML, or says something that cannot be."""
    return of_file(path, read)


def of_file(path: Path, read: Callable[[str], Read]) -> Read:
    """What ``read`` makes of a file's text. Raises ConfigError, which then names the path."""
    try:
        return read(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ConfigError as mistake:
        raise ConfigError(f"{path}: {mistake}") from None


def read(text: str) -> BridgeFile:
    try:
        tables = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}") from None
    try:
        file = msgspec.convert(_plain(tables), BridgeFile)
    except msgspec.ValidationError as error:
        raise ConfigError(_told(str(error), tables)) from None
    for complaint in _complaints(file):
        raise ConfigError(complaint)
    return file


def _plain(value: Any, path: tuple[str, ...] = ()) -> Any:
    """Decimals only where money is; a capability or a timeout is an ordinary number."""
    if isinstance(value, dict):
        return {key: _plain(entry, (*path, key)) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry, path) for entry in value]
    if isinstance(value, Decimal) and "usd" not in path:
        return float(value)
    return value


def _told(error: str, tables: dict[str, Any]) -> str:
    """The decoder's message with our path, what stands there, and what was probably meant."""
    unknown = UNKNOWN.match(error)
    if unknown:
        known = _keys_at(unknown["at"] or "")
        where = _path(unknown["at"])
        return f"{where}unknown key {unknown['key']!r}{did_you_mean(unknown['key'], known)}"
    found = AT.match(error)
    at = (found and found["at"]) or ""
    what = found["what"] if found else error
    if SECRET.search(at):  # whatever stands there is not repeated
        if "got `str`" in what:
            what = 'a secret is never written here: { env = "NAME" } or { file = "/path" }'
        return _path(at) + what.replace("`", "")
    return _path(at) + what.replace("`", "") + _found(at, tables, what) + _expected(at, what)


def _path(at: str | None) -> str:
    return f"{at.lstrip('.')}: " if at else ""


def _found(at: str, tables: dict[str, Any], what: str) -> str:
    """``, found 5``: the plain value that stands at a path, unless the message holds it."""
    value: Any = tables
    for step in STEP.finditer(at):
        value = value[step["key"]] if step["key"] else value[int(step["place"])]
    told = repr(value) if isinstance(value, str) else str(value)
    return "" if isinstance(value, dict | list) or told in what else f", found {told}"


def _expected(at: str, what: str) -> str:
    """What may stand at a path, where that is one of some words, or a date."""
    kind = _kind_at(at)
    if what.startswith("Invalid enum"):
        return f"; expected one of {', '.join(repr(word) for word in _words(kind))}"
    return "; a date is written 2026-01-01, without quotes" if kind is dt.date else ""


def _keys_at(at: str) -> list[str]:
    """The keys of the struct that a path leads to."""
    return [entry.encode_name for entry in msgspec.structs.fields(next(_structs(_kind_at(at))))]


def _kind_at(at: str) -> Any:
    """The annotated type of the key that a path ends in; of a list, not of its entries."""
    kind: Any = BridgeFile
    for name in re.findall(r"\.(\w+)", at):
        entries = msgspec.structs.fields(next(_structs(kind)))
        kind = next(entry.type for entry in entries if entry.encode_name == name)
    return kind


def _words(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for inner in get_args(kind):
            yield from _words(inner)


def _structs(kind: Any) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for inner in get_args(kind):
        yield from _structs(inner)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'model'?``, or the list of what is known when nothing is near."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.65)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


def _complaints(file: BridgeFile) -> Iterator[str]:
    """What a type cannot say: names given twice, zones and networks that do not exist."""
    yield from _twice("upstreams", [entry.name for entry in file.upstreams])
    yield from _twice("routes", [_of_team(entry.model, entry.team) for entry in file.routes])
    yield from _twice("teams", [entry.name for entry in file.teams])
    yield from _twice("keys", [f"{entry.team}/{entry.name}" for entry in file.keys])
    yield from _twice(
        "prices", [f"{entry.upstream or '*'} {entry.model} {entry.since}" for entry in file.prices]
    )
    yield from _budget_complaints(file)
    for place, key in enumerate(file.keys):
        for network in key.ip_allow:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                yield f"keys[{place}].ip_allow: {error}"


def _budget_complaints(file: BridgeFile) -> Iterator[str]:
    """Zones that do not exist; one owner's period twice, wherever the two stand."""
    first: dict[tuple[str, str, str], str] = {}
    for path, owner, budget in _budgets(file):
        try:
            zoneinfo.ZoneInfo(budget.zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            yield f"{path}.zone: no such time zone: {budget.zone!r}"
        same = first.setdefault((owner, budget.period, budget.zone), path)
        if same != path:
            yield f"{same} and {path} are both {owner} a {budget.period} in {budget.zone}"


def _budgets(file: BridgeFile) -> Iterator[tuple[str, str, Budget]]:
    """Where each stands, and whose it is."""
    for place, team in enumerate(file.teams):
        for at, budget in enumerate(team.budgets):
            yield f"teams[{place}].budgets[{at}]", f"team {team.name}", budget
    for place, key in enumerate(file.keys):
        for at, budget in enumerate(key.budgets):
            yield f"keys[{place}].budgets[{at}]", f"key {key.team}/{key.name}", budget
    for place, owned in enumerate(file.budgets):
        yield f"budgets[{place}]", owned.owner, owned


def _twice(kind: str, names: list[str]) -> Iterator[str]:
    first: dict[str, int] = {}
    for place, name in enumerate(names):
        if name in first:
            yield f"{kind}[{first[name]}] and {kind}[{place}] are both {name!r}"
        first.setdefault(name, place)


def _of_team(model: str, team: str | None) -> str:
    return f"{model} of team {team}" if team else model
