"""The tables of promises.md, from the data files of the tests: tests/slow/faults/tables/*.toml."""

import tomllib
from collections.abc import Callable
from pathlib import Path

from tests.slow.faults.catalogue import SECTIONS, Fault, catalogue

THREATS = Path(__file__).parents[2] / "tests/slow/faults/tables/threats.toml"


def faults() -> str:
    """Return one table for each section of the catalog: the faults, by their result."""
    parts = []
    for section, title in SECTIONS.items():
        groups: dict[tuple[str, str], list[str]] = {}
        for number, fault in sorted(catalogue().items()):
            if fault.section == section:
                groups.setdefault(_result(fault), []).append(f"**{number}** {fault.title}")
        parts += [
            f"\n### {title}\n",
            "| faults | the client receives | the row; release or recovery; test |",
            "|---|---|---|",
            *(_row(("; ".join(found), *result)) for result, found in groups.items()),
        ]
    return "\n".join(parts)


def _result(fault: Fault) -> tuple[str, str]:
    """Return what the client receives, and the rest; an executed fault names no test."""
    test = "" if fault.variants else _tests(fault.proof)
    instead = f" ({fault.instead})" if fault.instead else ""
    release = "" if fault.release in PROMPT else fault.release
    return _short(fault.client) + instead, "; ".join(filter(None, (fault.row, release, test)))


PROMPT = ("", "—", "1 s")
"""The usual release of the upstream's connection; promises.md says it once."""


def _short(client: str) -> str:
    """Return the client's result with the words that promises.md defines above its tables."""
    client = client.replace("the part received so far, then `event: error` with", "error event")
    return client.replace("a complete response", "complete").removeprefix("—")


def threats() -> str:
    rows = ["| # | threat | control | test |", "|---|---|---|---|"]
    for number, entry in tomllib.loads(THREATS.read_text(encoding="utf-8")).items():
        cells = (number, entry["threat"], entry["control"], _tests(entry["proof"]))
        rows.append(_row(cells))
    return "\n".join(rows)


def _tests(proof: list[str]) -> str:
    """Return the test files, each once."""
    paths = (test.partition("::")[0].removeprefix("tests/") for test in proof)
    return ", ".join(f"`{path}`" for path in dict.fromkeys(paths))


def _row(cells: tuple[str, ...]) -> str:
    return "|" + "|".join(f" {cell} " for cell in map(_escaped, cells)) + "|"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


PARTS: dict[str, Callable[[], str]] = {"faults": faults, "threats": threats}
