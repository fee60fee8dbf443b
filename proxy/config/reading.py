"""bridge.toml, from text to a checked ``BridgeFile``; every complaint names the path."""

import tomllib
import zoneinfo
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from proxy.complaints import told
from proxy.models import rules
from proxy.secrets import ConfigError

from .schema import BridgeFile, Budget

Read = TypeVar("Read")
MOST_BYTES: Final = 4 * 2**20
"""Of a file: 10,000 keys take 2 MB."""


def read_file(path: Path) -> BridgeFile:
    """Raises ConfigError: the file is missing, no TOML, or says something that cannot be."""
    return of_file(path, read)


def of_file(path: Path, read: Callable[[str], Read]) -> Read:
    """What ``read`` makes of a file's text. Raises ConfigError, which then names the path."""
    try:
        return read(_text(path))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ConfigError as mistake:
        raise ConfigError(f"{path}: {mistake}") from None


def _text(path: Path) -> str:
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ConfigError(f"{size} bytes are too many; at most {MOST_BYTES} are read")
    return path.read_text(encoding="utf-8")


def read(text: str) -> BridgeFile:
    try:
        tables = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError("not valid TOML: it is nested too deeply") from None
    try:
        file = msgspec.convert(_plain(tables), BridgeFile, dec_hook=rules.network)
    except msgspec.ValidationError as error:
        raise ConfigError(told(str(error), BridgeFile, tables)) from None
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


def _complaints(file: BridgeFile) -> Iterator[str]:
    """What a type cannot say: names given twice, zones that do not exist."""
    yield from _twice("upstreams", [entry.name for entry in file.upstreams])
    yield from _twice("routes", [_of_team(entry.model, entry.team) for entry in file.routes])
    yield from _twice("teams", [entry.name for entry in file.teams])
    yield from _twice("keys", [f"{entry.team}/{entry.name}" for entry in file.keys])
    yield from _twice(
        "prices", [f"{entry.upstream or '*'} {entry.model} {entry.since}" for entry in file.prices]
    )
    yield from _budget_complaints(file)


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
