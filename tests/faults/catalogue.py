"""The catalogue of faults: one entry for each promised fault, in the ``*.toml`` files beside this.

An entry is a table named by its number (``[U14]``). It says what is done to the gateway and what
then is seen: by the client, in the ledger, at the upstream. One that is tried in several ways has
``[[U14.plays]]``; each inherits what the entry says and adds its own. The fields are those of
``Play``; the words of its scripts are those of ``plays.py`` and ``client.py``.

An entry may instead name the test that proves it (``proof``). Where another page of the contract
decides otherwise than the catalogue's own line, ``instead`` tells which and how.
"""

import itertools
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

HERE = Path(__file__).parent
SECTIONS = {
    "upstream_before": "Upstream: before its status line",
    "upstream_status": "Upstream: error statuses",
    "upstream_stream": "Upstream: stream faults",
    "client": "Client faults",
    "storage": "Database, disk, Redis",
    "process": "Process, host, configuration",
}
Dialect = Literal["chat", "responses", "anthropic"]
Ask = Literal["stream", "whole"]


class Play(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One way to try a fault, and all that must come of it."""

    # What is done.
    upstream: list[Any] = []  # the script of the upstream; a list of lists: one for each turn
    route: str = "steady"  # which upstream: see ``world.UPSTREAMS``
    dialects: tuple[Dialect, ...] = ("chat", "responses")
    asks: tuple[Ask, ...] = ("stream",)
    request: dict[str, Any] = {}  # fields of the body, beside the usual ones
    send: dict[str, str] = {}  # headers of the request
    body: str = ""  # instead of a body made of fields; each character is a byte
    key: str = ""  # whose: see ``world.KEYS``
    client: list[Any] = []  # the script of the client; empty: it asks and hears
    story: str = ""  # a function of ``stories.py`` that does what no script can say
    each: dict[str, list[Any]] = {}  # "$k" stands for each of these in turn

    # What the client sees: "502 api_error", "whole", "error api_error" (in the stream), "gone"
    # (it left), "closed" (no answer, the connection ends), "judged" (by the story itself).
    sees: str = ""
    says: str = ""  # part of the error's message
    headers: dict[str, str] = {}  # of the answer; empty text: it must not be there
    text: str | None = None  # of the answer
    texts: int | str | None = None  # it is the first so many of the usual texts
    letters: int | None = None  # it is the letter w, so many times
    pings: bool = False  # some come
    stop_reason: str | None = None

    # The ledger: "outcome/status/usage/attempts", or "none".
    row: str = ""
    row_has: dict[str, Any] = {}  # further columns
    tokens: tuple[int, int] = (12, 5)  # told by the upstream, if it told any

    # The rest of the world.
    release: str = ""  # how soon the upstream's socket is free, in words
    dialled: int | None = None  # requests that reached the upstream; None: as the row's attempts
    rss_mb: int | None = None  # the process may grow by so much at its peak


class Fault(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One line of the catalogue."""

    number: str
    title: str
    section: str
    client: str  # in words, for people
    row: str
    release: str
    plays: list[Play]
    proof: list[str]  # "tests/…/test_x.py::test_name"
    instead: str  # who decides otherwise, and how


class Case(NamedTuple):
    """One play in one dialect, asked in one way, with one value for each ``$name``."""

    id: str
    fault: str
    play: Play
    dialect: Dialect
    ask: Ask


WORDS = ("title", "client_sees", "ledger", "proof", "instead", "plays")
"""What an entry has of its own; all else is handed down to its plays."""


@cache
def catalogue() -> dict[str, Fault]:
    """Every fault by its number. Raises msgspec.ValidationError for an entry that is wrong."""
    found: dict[str, Fault] = {}
    for section in SECTIONS:
        for path in sorted(HERE.glob(f"{section}*.toml")):
            for number, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
                assert number not in found, f"{number} is there twice"
                found[number] = _fault(number, section, entry)
    return found


def _fault(number: str, section: str, entry: dict[str, Any]) -> Fault:
    shared = {name: value for name, value in entry.items() if name not in WORDS}
    proof = entry.get("proof", [])
    own = [] if proof and not entry.get("plays") else entry.get("plays", [{}])
    try:
        plays = [msgspec.convert({**shared, **each}, Play) for each in own]
        return Fault(
            number=number,
            title=entry["title"],
            section=section,
            client=entry.get("client_sees") or _distinct(_seen(play) for play in plays),
            row=entry.get("ledger") or _distinct(play.row for play in plays),
            release=_distinct(play.release for play in plays) or shared.get("release", ""),
            plays=plays,
            proof=[proof] if isinstance(proof, str) else proof,
            instead=entry.get("instead", ""),
        )
    except (msgspec.ValidationError, KeyError) as error:
        raise AssertionError(f"{number}: {error}") from None


def _distinct(said: Iterator[str]) -> str:
    return "; ".join(dict.fromkeys(each for each in said if each))


SEEN = {"whole": "a whole answer", "gone": "—", "closed": "the connection ends"}


def _seen(play: Play) -> str:
    """``sees`` in words for people."""
    first, _, rest = play.sees.partition(" ")
    told = SEEN.get(play.sees)
    if first == "error":
        told = f"what came so far, then `event: error` with `{rest}`"
    elif told is None:
        told = f"{first} `{rest}`" if rest else first
    headers = [f"`{name}: {value}`" for name, value in play.headers.items() if value]
    return ", ".join([told, *headers])


def played_faults() -> list[Fault]:
    """Those that the runner of this folder plays."""
    return [fault for fault in catalogue().values() if fault.plays]


def cases_of(fault: Fault) -> list[Case]:
    """Every play in every dialect, with every value."""
    return [
        case
        for n, play in enumerate(fault.plays)
        for case in _spread(fault.number, f"-{n}" if len(fault.plays) > 1 else "", play)
    ]


def _spread(number: str, suffix: str, play: Play) -> Iterator[Case]:
    names = list(play.each)
    for dialect, ask, *values in itertools.product(play.dialects, play.asks, *play.each.values()):
        chosen = dict(zip(names, values, strict=True))
        filled = msgspec.convert(_filled(msgspec.to_builtins(play), chosen), Play)
        name = "".join(f"-{value}" for value in values if len(str(value)) < 20)
        place = "".join(f"@{play.each[n].index(v)}" for n, v in chosen.items() if len(str(v)) >= 20)
        yield Case(f"{number}{suffix}-{dialect}-{ask}{name}{place}", number, filled, dialect, ask)


def _filled(value: Any, chosen: dict[str, Any]) -> Any:
    """The same with each ``$name`` replaced."""
    match value:
        case dict():
            return {key: _filled(each, chosen) for key, each in value.items() if key != "each"}
        case list():
            return [_filled(each, chosen) for each in value]
        case str() if value[:1] == "$" and value[1:] in chosen:
            return chosen[value[1:]]
    return value


def fault_rows() -> list[tuple[str, ...]]:
    """The table of the docs: number, fault, what the client sees, row, release, how it is shown."""
    return [
        (
            fault.number,
            fault.title,
            fault.client + (f" ({fault.instead})" if fault.instead else ""),
            fault.row or "—",
            fault.release or "—",
            _shown(fault),
        )
        for fault in catalogue().values()
    ]


def _shown(fault: Fault) -> str:
    if fault.plays:
        times = len(cases_of(fault))
        return f"played in {times} way{'s' if times > 1 else ''}"
    return ", ".join(f"`{name}`" for name in fault.proof)
