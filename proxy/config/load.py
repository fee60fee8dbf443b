"""Read a bridge.toml into its entries; errors name the path of the wrong value."""

import contextlib
import multiprocessing
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeVar

import django

from proxy.file_modes import refuse_writable_by_all
from proxy.secrets import ConfigError, mistakes_error

Read = TypeVar("Read")
MAX_BYTES: Final = 4 * 2**20
"""Maximum size of a file; 10,000 keys take 2 MB."""
MAX_MISTAKES: Final = 100
"""The maximum number of mistakes that one error lists."""
STARTER_PRICES: Final = Path(__file__).parents[1] / "data" / "prices.toml"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry with its path, such as ``teams[0]``, and the values of all its columns.

    A reference to another row is its name.
    """

    where: str
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


@dataclass(frozen=True, slots=True)
class BridgeFile:
    """The entries of a file that can be read.

    ``mistakes``: of the others. ``wrong``: kind and name of the entries that are left out; the name
    is None if it cannot be read.
    """

    upstreams: list[Entry] = field(default_factory=list)
    routes: list[Entry] = field(default_factory=list)
    prices: list[Entry] = field(default_factory=list)
    teams: list[Entry] = field(default_factory=list)
    keys: list[Entry] = field(default_factory=list)
    budgets: list[Entry] = field(default_factory=list)
    webhooks: list[Entry] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    wrong: set[tuple[str, str | None]] = field(default_factory=set)

    def all_budgets(self) -> Iterator[tuple[Entry, str, str]]:
        """Yield each budget with kind and name of its owner, such as ``key`` and ``team/name``."""
        for kind, owners, column in (
            ("team", self.teams, "budgets"),
            ("key", self.keys, "budget_set"),
        ):
            for owner in owners:
                name = NAMES[f"{kind}s"](owner)
                for place, budget in enumerate(owner.values.get(column, ())):
                    yield Entry(f"{owner.where}.budgets[{place}]", budget), kind, name
        for owned in self.budgets:
            kind = next(kind for kind in ("team", "key", "user") if owned[kind])
            yield owned, kind, owned[kind]

    def check_twins(self) -> None:
        """Add a mistake for each entry that another one has already described."""
        for kind, name in NAMES.items():
            self._add_twins((one.where, repr(name(one))) for one in getattr(self, kind))
        self._add_twins(
            (
                budget.where,
                f"{kind} {name} a {budget['period']} in {budget['zone']}"
                + (f" for {', '.join(models)}" if (models := budget["models_covered"]) else ""),
            )
            for budget, kind, name in self.all_budgets()
        )

    def _add_twins(self, named: Iterable[tuple[str, str]]) -> None:
        first: dict[str, str] = {}
        for where, name in named:
            if (same := first.setdefault(name, where)) != where:
                self.mistakes.append(f"{same} and {where} are both {name}")


def route_name(route: Entry) -> str:
    return f"{route['model']} of team {route['team']}" if route["team"] else str(route["model"])


def price_name(price: Any) -> str:
    """Return the name of a price, of an entry or of a row by field name."""
    parts = ("service_tier", "speed", "inference_geo")
    named = [f"{part}={price[part]}" for part in parts if price[part]]
    return " ".join(
        [str(price["upstream"] or "*"), price["model"], *named, f"since {price['since']}"]
    )


NAMES: Final[Mapping[str, Callable[[Entry], str]]] = {
    "upstreams": lambda one: str(one["name"]),
    "routes": route_name,
    "teams": lambda one: str(one["name"]),
    "keys": lambda one: f"{one['team']}/{one['name']}",
    "prices": price_name,
    "webhooks": lambda one: str(one["name"]),
}
"""Kind of entries -> the name that only one entry may have."""


def read_file(path: Path) -> BridgeFile:
    """Read and validate a bridge.toml.

    Raises ConfigError if the file is missing or is not TOML; for wrong values, it lists all.
    """
    return parse_file(path, read)


def read_in_child(path: Path) -> BridgeFile:
    """Read and validate a bridge.toml in a process of its own. Raises ConfigError.

    The serializers import Django REST framework, which would stay in the memory of the gateway. A
    process with one thread, as at a start, is forked, because its libraries are there already.
    """
    context: Any = multiprocessing.get_context("fork" if threading.active_count() == 1 else "spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_file, args=(path, receiver, sender), daemon=True)
    try:
        with receiver:
            with sender:
                child.start()
            found: BridgeFile | ConfigError = receiver.recv()
    except OSError as error:
        raise ConfigError(f"{path}: no process can be started: {error.strerror}") from None
    except EOFError:
        child.join()
        how = f"ended with exit code {child.exitcode}"
        raise ConfigError(f"{path}: the process that reads it {how}") from None
    child.join()
    if isinstance(found, ConfigError):
        raise found
    return found


def _send_file(path: Path, receiver: Connection, sender: Connection) -> None:
    """Read a file in a child process, which ends even if its parent has ended before."""
    receiver.close()
    django.setup()
    try:
        found: BridgeFile | ConfigError = read_file(path)
    except ConfigError as mistake:
        found = mistake
    with contextlib.suppress(BrokenPipeError):
        sender.send(found)


def starter_prices() -> list[dict[str, Any]]:
    """Return the columns of the prices of well-known models that a first start creates.

    The file is a bridge.toml, but part of the package: it is read without the serializers.
    """
    text = STARTER_PRICES.read_text(encoding="utf-8")
    prices: list[dict[str, Any]] = tomllib.loads(text)["prices"]
    for price in prices:
        price |= {name: Decimal(usd) for name, usd in price.pop("usd").items()}
    return prices


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
    file = read_draft(text)
    if file.mistakes:
        raise mistakes_error(file.mistakes[:MAX_MISTAKES])
    return file


def read_draft(text: str) -> BridgeFile:
    """Read a bridge.toml that may have mistakes. Raises ConfigError if it is not TOML."""
    # A start without a file needs no serializers.
    from .entries import read_entries  # noqa: PLC0415

    try:
        tables = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError("not valid TOML: it is nested too deeply") from None
    file = read_entries(_plain(tables))
    file.check_twins()
    return file


def _plain(value: Any, path: tuple[str, ...] = ()) -> Any:
    """Convert Decimal values to float, except for amounts of money, which must stay exact."""
    if isinstance(value, dict):
        return {key: _plain(entry, (*path, key)) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry, path) for entry in value]
    if isinstance(value, Decimal) and "usd" not in path:
        return float(value)
    return value
