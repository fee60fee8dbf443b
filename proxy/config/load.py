"""Read a bridge.toml into a validated ``BridgeFile``; errors name the path of the wrong value."""

import tomllib
import zoneinfo
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from proxy.decode_errors import decode_errors, explain_decode_error
from proxy.file_modes import refuse_writable_by_all
from proxy.models.setup import json_field_types
from proxy.secrets import ConfigError, mistakes_error

from .draft import Draft, without_wrong_entries
from .schema import BridgeFile, Budget, Price

Read = TypeVar("Read")
MAX_BYTES: Final = 4 * 2**20
"""Maximum size of a file; 10,000 keys take 2 MB."""
MAX_MISTAKES: Final = 100
"""The maximum number of mistakes that one error lists."""
STARTER_PRICES: Final = Path(__file__).parents[1] / "data" / "prices.toml"


def read_file(path: Path) -> BridgeFile:
    """Read and validate a bridge.toml.

    Raises ConfigError if the file is missing or is not TOML; for wrong values, it lists all.
    """
    return parse_file(path, read)


def starter_prices() -> list[Price]:
    """Return the prices of well-known models that a first start creates."""
    return read_file(STARTER_PRICES).prices


def parse_file(path: Path, read: Callable[[str], Read]) -> Read:
    """Read a file and return the result of ``read`` for its text.

    Raises ConfigError, always with the path of the file.
    """
    try:
        return read(_text(path))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _text(path: Path) -> str:
    found = path.stat()
    refuse_writable_by_all(path, found.st_mode)
    if found.st_size > MAX_BYTES:
        raise ConfigError(f"{found.st_size} bytes are too many; at most {MAX_BYTES} are read")
    return path.read_text(encoding="utf-8")


def read(text: str) -> BridgeFile:
    draft = read_draft(text)
    if draft.mistakes:
        raise mistakes_error(draft.mistakes[:MAX_MISTAKES])
    return draft.file


def read_draft(text: str) -> Draft:
    """Read a bridge.toml that may have mistakes. Raises ConfigError if it is not TOML."""
    try:
        tables = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError("not valid TOML: it is nested too deeply") from None
    plain = _plain(tables)
    try:
        draft = Draft(_decode(plain, BridgeFile))
    except msgspec.ValidationError:
        found = decode_errors(plain, BridgeFile, _decode)
        mistakes = [explain_decode_error(error, BridgeFile, tables) for error in found]
        draft = without_wrong_entries(plain, _decode, mistakes)
    draft.mistakes.extend(map(draft.with_places_of_file, _semantic_errors(draft.file)))
    return draft


def _decode(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, dec_hook=json_field_types.network)


def _plain(value: Any, path: tuple[str, ...] = ()) -> Any:
    """Convert Decimal values to float, except for amounts of money, which must stay exact."""
    if isinstance(value, dict):
        return {key: _plain(entry, (*path, key)) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry, path) for entry in value]
    if isinstance(value, Decimal) and "usd" not in path:
        return float(value)
    return value


def _semantic_errors(file: BridgeFile) -> Iterator[str]:
    """Yield messages for errors that the schema does not find: duplicates, unknown time zones."""
    yield from _duplicates("upstreams", [entry.name for entry in file.upstreams])
    yield from _duplicates("routes", [_route_name(one.model, one.team) for one in file.routes])
    yield from _duplicates("teams", [entry.name for entry in file.teams])
    yield from _duplicates("keys", [f"{entry.team}/{entry.name}" for entry in file.keys])
    yield from _duplicates("prices", [_price_name(entry) for entry in file.prices])
    yield from _budget_errors(file)


def _price_name(price: Price) -> str:
    named = (price.upstream or "*", price.model, price.service_tier, price.speed)
    return " ".join(filter(None, (*named, price.inference_geo, str(price.since))))


def _budget_errors(file: BridgeFile) -> Iterator[str]:
    """Yield messages for unknown time zones, and for two budgets of one owner, period and zone."""
    first: dict[tuple[str, ...], str] = {}
    for path, owner, budget in _budgets(file):
        try:
            zoneinfo.ZoneInfo(budget.zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            yield f"{path}.zone: no such time zone: {budget.zone!r}"
        identity = (owner, budget.period, budget.zone, *budget.models)
        same = first.setdefault(identity, path)
        if same != path:
            models = f" for {', '.join(budget.models)}" if budget.models else ""
            yield f"{same} and {path} are both {owner} a {budget.period} in {budget.zone}{models}"


def _budgets(file: BridgeFile) -> Iterator[tuple[str, str, Budget]]:
    """Yield the path in the file, the owner and the entry of each budget."""
    for place, team in enumerate(file.teams):
        for at, budget in enumerate(team.budgets):
            yield f"teams[{place}].budgets[{at}]", f"team {team.name}", budget
    for place, key in enumerate(file.keys):
        for at, budget in enumerate(key.budgets):
            yield f"keys[{place}].budgets[{at}]", f"key {key.team}/{key.name}", budget
    for place, owned in enumerate(file.budgets):
        yield f"budgets[{place}]", owned.owner, owned


def _duplicates(kind: str, names: list[str]) -> Iterator[str]:
    first: dict[str, int] = {}
    for place, name in enumerate(names):
        if name in first:
            yield f"{kind}[{first[name]}] and {kind}[{place}] are both {name!r}"
        first.setdefault(name, place)


def _route_name(model: str, team: str | None) -> str:
    return f"{model} of team {team}" if team else model
