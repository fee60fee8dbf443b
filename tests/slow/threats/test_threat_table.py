"""The tables of threats and faults are complete, and each named proof is an existing test."""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.slow.faults.catalogue import catalogue

REPOSITORY = Path(__file__).parents[3]
TABLE = REPOSITORY / "tests/slow/faults/tables/threats.toml"
THREATS = tomllib.loads(TABLE.read_text(encoding="utf-8"))


@cache
def names_of_tests(path: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def test_table_has_all_55_threats():
    assert sorted(THREATS) == [f"T{n:02}" for n in range(1, 56)]


@pytest.mark.parametrize("number", THREATS)
def test_each_threat_has_a_control_and_an_existing_test(number):
    entry = THREATS[number]

    assert set(entry) == {"threat", "control", "proof"}
    assert entry["proof"]
    for proof in entry["proof"]:
        path, _, name = proof.partition("::")
        assert name in names_of_tests(path), proof


def test_table_has_all_faults():
    counts = {"U": 73, "C": 28, "D": 17, "R": 5, "P": 15, "K": 10}

    ended = {"C24"}  # idempotency-key, which /v1/messages ignores as Anthropic does
    assert {*catalogue()} == {
        f"{kind}{n:02}" for kind, count in counts.items() for n in range(1, count + 1)
    } - ended


@pytest.mark.parametrize("number", catalogue())
def test_each_fault_has_variants_or_an_existing_test(number):
    fault = catalogue()[number]

    assert fault.variants or fault.proof
    for proof in fault.proof:
        path, _, name = proof.partition("::")
        assert name in names_of_tests(path), proof
