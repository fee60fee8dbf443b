"""The catalogue of faults: one entry for each promised fault, in ``tables/*.toml``.

An entry is a table named by its number (``[U14]``). It describes a fault and the expected result for
the client, the ledger and the upstream. An entry with several variants has ``[[U14.variants]]``; each
variant inherits the entry's fields and adds its own. The fields are those of ``Variant``. The steps
of the scripts are defined in ``fault_scripts.py`` (upstream) and ``environment/client.py`` (client).

An entry may instead name the test that proves it (``proof``). ``instead`` is a
rule by which some variants have another result.
"""

import itertools
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

TABLES = Path(__file__).parent / "tables"
SECTIONS = {
    "upstream_before": "Upstream: before its status line",
    "upstream_status": "Upstream: error statuses",
    "upstream_stream": "Upstream: stream faults",
    "client": "Client faults",
    "storage": "Database, disk, Redis",
    "process": "Process, host, configuration",
}
Dialect = Literal["chat", "responses", "anthropic"]
Mode = Literal["stream", "whole"]


class Variant(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One variant of a fault with its expected result."""

    # The fault.
    upstream: list[Any] = []  # the script of the upstream; a list of lists: one for each turn
    route: str = "steady"  # which upstream: see ``invariants.PLACES``
    dialects: tuple[Dialect, ...] = ("chat", "responses")
    modes: tuple[Mode, ...] = ("stream",)
    request: dict[str, Any] = {}  # fields of the body, in addition to the default ones
    send: dict[str, str] = {}  # headers of the request
    body: str = ""  # the complete body instead of fields; each character is a byte
    key: str = ""  # the gateway key: see ``invariants.KEYS``
    client: list[Any] = []  # the client's script; empty: send the request, read the response
    scenario: str = ""  # a function of ``fault_scenarios.py``, where no script suffices
    each: dict[str, list[Any]] = {}  # "$k" is replaced by each of these values in turn

    # The client's result: "502 api_error", "whole", "error api_error" (in the stream), "gone" (the
    # client disconnected), "closed" (the connection ends without a response),
    # "checked by scenario" (the scenario function checks it).
    sees: str = ""
    message: str = ""  # part of the error's message
    headers: dict[str, str] = {}  # of the response; empty text: the header is absent
    text: str | None = None  # of the response
    texts: int | str | None = None  # the text is the first n of the default texts
    letters: int | None = None  # the text is n times the letter w
    pings: bool = False  # the stream has pings
    stop_reason: str | None = None

    # The ledger: "outcome/status/usage/attempts", or "none".
    row: str = ""
    row_has: dict[str, Any] = {}  # further columns
    tokens: tuple[int, int] = (12, 5)  # as the upstream reports them, if it does

    # Connections and memory.
    release: str = ""  # when the upstream's socket is released, in words
    upstream_requests: int | None = (
        None  # requests that reached the upstream; None: as the row's attempts
    )
    rss_mb: int | None = None  # maximum growth of the process at its peak


class Fault(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One line of the catalogue."""

    number: str
    title: str
    section: str
    client: str  # description for the documentation
    row: str
    release: str
    variants: list[Variant]
    proof: list[str]  # for example "tests/.../test_x.py::test_name"
    instead: str  # a rule by which some variants have another result


class Case(NamedTuple):
    """One variant in one dialect and one response mode, with one value for each ``$name``."""

    id: str
    fault: str
    variant: Variant
    dialect: Dialect
    mode: Mode


WORDS = ("title", "client_sees", "ledger", "proof", "instead", "variants")
"""Fields of the entry itself; its variants inherit all other fields."""


@cache
def catalogue() -> dict[str, Fault]:
    """Return every fault by its number. Raise AssertionError for an invalid entry."""
    found: dict[str, Fault] = {}
    for section in SECTIONS:
        for path in sorted(TABLES.glob(f"{section}*.toml")):
            for number, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
                assert number not in found, f"{number} is defined twice"
                found[number] = _fault(number, section, entry)
    return found


def _fault(number: str, section: str, entry: dict[str, Any]) -> Fault:
    shared = {name: value for name, value in entry.items() if name not in WORDS}
    proof = entry.get("proof", [])
    tables = [] if proof and not entry.get("variants") else entry.get("variants", [{}])
    try:
        variants = [msgspec.convert({**shared, **each}, Variant) for each in tables]
        return Fault(
            number=number,
            title=entry["title"],
            section=section,
            client=entry.get("client_sees") or _distinct(_seen(variant) for variant in variants),
            row=entry.get("ledger") or _distinct(variant.row for variant in variants),
            release=_distinct(variant.release for variant in variants) or shared.get("release", ""),
            variants=variants,
            proof=[proof] if isinstance(proof, str) else proof,
            instead=entry.get("instead", ""),
        )
    except (msgspec.ValidationError, KeyError) as error:
        raise AssertionError(f"{number}: {error}") from None


def _distinct(texts: Iterator[str]) -> str:
    return "; ".join(dict.fromkeys(each for each in texts if each))


SEEN = {"whole": "a complete response", "gone": "—", "closed": "the connection ends"}


def _seen(variant: Variant) -> str:
    """Describe ``sees`` for the documentation."""
    first, _, rest = variant.sees.partition(" ")
    words = SEEN.get(variant.sees)
    if first == "error":
        words = f"the part received so far, then `event: error` with `{rest}`"
    elif words is None:
        words = f"{first} `{rest}`" if rest else first
    headers = [f"`{name}: {value}`" for name, value in variant.headers.items() if value]
    return ", ".join([words, *headers])


def faults_with_variants() -> list[Fault]:
    """Return the faults that have variants to run."""
    return [fault for fault in catalogue().values() if fault.variants]


def cases_of(fault: Fault) -> list[Case]:
    """Return every variant in every dialect, mode and value."""
    return [case for cases in _cases_by_variant(fault) for case in cases]


def examples_of(fault: Fault) -> list[Case]:
    """Return one case of each variant; faults differ in the dialect, mode and value of theirs."""
    turn = int(fault.number[1:])
    return [cases[turn % len(cases)] for cases in _cases_by_variant(fault)]


def _cases_by_variant(fault: Fault) -> list[list[Case]]:
    return [
        list(_spread(fault.number, f"-{n}" if len(fault.variants) > 1 else "", variant))
        for n, variant in enumerate(fault.variants)
    ]


def _spread(number: str, suffix: str, variant: Variant) -> Iterator[Case]:
    names = list(variant.each)
    for dialect, mode, *values in itertools.product(
        variant.dialects, variant.modes, *variant.each.values()
    ):
        chosen = dict(zip(names, values, strict=True))
        filled = msgspec.convert(_filled(msgspec.to_builtins(variant), chosen), Variant)
        name = "".join(f"-{value}" for value in values if len(str(value)) < 20)
        position = "".join(
            f"@{variant.each[n].index(v)}" for n, v in chosen.items() if len(str(v)) >= 20
        )
        yield Case(
            f"{number}{suffix}-{dialect}-{mode}{name}{position}", number, filled, dialect, mode
        )


def _filled(value: Any, chosen: dict[str, Any]) -> Any:
    """Return ``value`` with each ``$name`` replaced."""
    match value:
        case dict():
            return {key: _filled(each, chosen) for key, each in value.items() if key != "each"}
        case list():
            return [_filled(each, chosen) for each in value]
        case str() if value[:1] == "$" and value[1:] in chosen:
            return chosen[value[1:]]
    return value


def fault_rows() -> list[tuple[str, ...]]:
    """Return the documentation's table: number, fault, client, row, release, proof."""
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
    if fault.variants:
        count = len(cases_of(fault))
        return f"run in {count} variant{'s' if count > 1 else ''}"
    return ", ".join(f"`{name}`" for name in fault.proof)
