"""The catalogue is complete, and every test that it names exists."""

import ast
from pathlib import Path

import pytest

from .catalogue import TABLES, catalogue, fault_rows

REPOSITORY = Path(__file__).parents[3]
COUNTS = {
    "U": 73,  # the upstream
    "C": 28,  # the client
    "D": 17,  # database and disk
    "R": 5,  # Redis
    "P": 15,  # the process
    "K": 10,  # its configuration
}
"""The number of promised faults of each kind, 148 in total."""


@pytest.mark.parametrize("kind", COUNTS)
def test_catalogue_has_every_promised_fault(kind: str):
    expected = [f"{kind}{n:02}" for n in range(1, COUNTS[kind] + 1)]
    if kind == "C":
        expected.remove("C24")  # idempotency-key, which /v1/messages ignores as Anthropic does

    assert sorted(number for number in catalogue() if number[0] == kind) == expected


def test_each_fault_has_variants_or_a_proof():
    assert [
        fault.number for fault in catalogue().values() if not (fault.variants or fault.proof)
    ] == []


def test_each_variant_has_an_expected_result():
    incomplete = [
        fault.number
        for fault in catalogue().values()
        for variant in fault.variants
        if not (variant.sees and variant.row)
    ]

    assert incomplete == []


NAMED = sorted({name for fault in catalogue().values() for name in fault.proof})


@pytest.mark.parametrize(
    "name", NAMED or ["tests/slow/faults/test_catalogue.py::test_documented_table_has_every_fault"]
)
def test_named_test_exists(name: str):
    path, _, function = name.partition("::")
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))

    assert function.partition("[")[0] in {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_documented_table_has_every_fault():
    rows = fault_rows()

    assert [row[0] for row in rows] == [*catalogue()]
    assert all(all(row) for row in rows)


def test_every_catalogue_file_is_read():
    read = {fault.section for fault in catalogue().values()}

    assert {path.stem.rstrip("0123456789_") for path in TABLES.glob("*.toml")} - {
        "threats",
        "pairs",
    } == read
