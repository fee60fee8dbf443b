"""The tables of promises.md, from the data that the tests read: tests/faults/*.toml."""

import tomllib
from collections.abc import Callable
from pathlib import Path

from tests.faults.catalogue import SECTIONS, catalogue

THREATS = Path(__file__).parents[1] / "tests/faults/threats.toml"


def faults() -> str:
    """One table for each section of the catalogue."""
    parts = []
    for section, title in SECTIONS.items():
        parts += [
            f"\n### {title}\n",
            "| # | what happens | the client sees | the row | released, recovered | shown by |",
            "|---|---|---|---|---|---|",
        ]
        for number, fault in sorted(catalogue().items()):
            if fault.section == section:
                shown = "played" if fault.plays else _tests(fault.proof)
                instead = f" *{fault.instead}*" if fault.instead else ""
                cells = (
                    number,
                    fault.title,
                    fault.client + instead,
                    fault.row,
                    fault.release,
                    shown,
                )
                parts.append(_row(cells))
    return "\n".join(parts)


def threats() -> str:
    rows = ["| # | threat | what stands against it | shown by |", "|---|---|---|---|"]
    for number, entry in tomllib.loads(THREATS.read_text(encoding="utf-8")).items():
        cells = (number, entry["threat"], entry["control"], _tests(entry["proof"]))
        rows.append(_row(cells))
    return "\n".join(rows)


def _tests(proof: list[str]) -> str:
    """Files, each with the number of its tests that are named."""
    files: dict[str, int] = {}
    for one in proof:
        path = one.partition("::")[0].removeprefix("tests/")
        files[path] = files.get(path, 0) + 1
    return ", ".join(f"`{path}`" + (f" ({n})" if n > 1 else "") for path, n in files.items())


def _row(cells: tuple[str, ...]) -> str:
    return (
        "| "
        + " | ".join(cell.replace("|", "\\|").replace("\n", " ") or "—" for cell in cells)
        + " |"
    )


PARTS: dict[str, Callable[[], str]] = {"faults": faults, "threats": threats}
