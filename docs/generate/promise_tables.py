"""The tables of promises.md, from the data files of the tests: tests/slow/faults/tables/*.toml."""

import tomllib
from collections.abc import Callable
from pathlib import Path

from tests.slow.faults.catalogue import SECTIONS, catalogue

THREATS = Path(__file__).parents[2] / "tests/slow/faults/tables/threats.toml"


def faults() -> str:
    """Return one table for each section of the catalog."""
    parts = []
    for section, title in SECTIONS.items():
        parts += [
            f"\n### {title}\n",
            "| # | fault | the client receives | the row | release and recovery | test |",
            "|---|---|---|---|---|---|",
        ]
        for number, fault in sorted(catalogue().items()):
            if fault.section == section:
                test = "executed" if fault.variants else _tests(fault.proof)
                instead = f" *{fault.instead}*" if fault.instead else ""
                cells = (
                    number,
                    fault.title,
                    fault.client + instead,
                    fault.row,
                    fault.release,
                    test,
                )
                parts.append(_row(cells))
    return "\n".join(parts)


def threats() -> str:
    rows = ["| # | threat | control | test |", "|---|---|---|---|"]
    for number, entry in tomllib.loads(THREATS.read_text(encoding="utf-8")).items():
        cells = (number, entry["threat"], entry["control"], _tests(entry["proof"]))
        rows.append(_row(cells))
    return "\n".join(rows)


def _tests(proof: list[str]) -> str:
    """Return the test files, each with the number of tests named in it."""
    files: dict[str, int] = {}
    for test in proof:
        path = test.partition("::")[0].removeprefix("tests/")
        files[path] = files.get(path, 0) + 1
    return ", ".join(f"`{path}`" + (f" ({n})" if n > 1 else "") for path, n in files.items())


def _row(cells: tuple[str, ...]) -> str:
    return (
        "| "
        + " | ".join(cell.replace("|", "\\|").replace("\n", " ") or "—" for cell in cells)
        + " |"
    )


PARTS: dict[str, Callable[[], str]] = {"faults": faults, "threats": threats}
