"""The catalogue is whole, and every test that it names exists."""

import ast
from pathlib import Path

import pytest

from .catalogue import HERE, catalogue, fault_rows

REPOSITORY = Path(__file__).parents[2]
LINES = {
    "U": 64,  # the upstream
    "C": 28,  # the client
    "D": 16,  # database and disk
    "R": 5,  # Redis
    "P": 15,  # the process
    "K": 10,  # its configuration
}
"""How many faults of each kind are promised: 138."""


@pytest.mark.parametrize("kind", LINES)
def test_every_promised_fault_is_there(kind: str):
    wanted = [f"{kind}{n:02}" for n in range(1, LINES[kind] + 1)]

    assert sorted(number for number in catalogue() if number[0] == kind) == wanted


def test_each_is_played_or_proved():
    assert [
        fault.number for fault in catalogue().values() if not (fault.plays or fault.proof)
    ] == []


def test_each_play_says_what_must_come_of_it():
    silent = [
        fault.number
        for fault in catalogue().values()
        for play in fault.plays
        if not (play.sees and play.row)
    ]

    assert silent == []


NAMED = sorted({name for fault in catalogue().values() for name in fault.proof})


@pytest.mark.parametrize(
    "name", NAMED or ["tests/faults/test_catalogue.py::test_the_table_has_them_all"]
)
def test_a_test_that_is_named_exists(name: str):
    path, _, function = name.partition("::")
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))

    assert function.partition("[")[0] in {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_table_has_them_all():
    rows = fault_rows()

    assert [row[0] for row in rows] == [*catalogue()]
    assert all(all(row) for row in rows)


def test_no_file_of_the_catalogue_is_forgotten():
    read = {fault.section for fault in catalogue().values()}

    assert {path.stem.rstrip("0123456789_") for path in HERE.glob("*.toml")} - {
        "threats",
        "pairs",
    } == read
