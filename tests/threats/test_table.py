"""The tables of threats and faults are whole, and each proof they name is a test that exists."""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.faults.catalogue import catalogue

REPOSITORY = Path(__file__).parents[2]
TABLE = REPOSITORY / "tests/faults/threats.toml"
THREATS = tomllib.loads(TABLE.read_text(encoding="utf-8"))


@cache
def named_in(path: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def test_all_fifty_two_are_there():
    assert sorted(THREATS) == [f"T{n:02}" for n in range(1, 53)]


@pytest.mark.parametrize("number", THREATS)
def test_each_has_a_control_and_a_test_that_exists(number):
    entry = THREATS[number]

    assert set(entry) == {"threat", "control", "proof"}
    assert entry["proof"]
    for proof in entry["proof"]:
        path, _, name = proof.partition("::")
        assert name in named_in(path), proof


def test_all_faults_are_there():
    counts = {"U": 64, "C": 28, "D": 16, "R": 5, "P": 15, "K": 10}

    assert sorted(catalogue()) == sorted(
        f"{kind}{n:02}" for kind, most in counts.items() for n in range(1, most + 1)
    )


@pytest.mark.parametrize("number", catalogue())
def test_each_fault_is_played_or_has_a_test_that_exists(number):
    fault = catalogue()[number]

    assert fault.plays or fault.proof
    for proof in fault.proof:
        path, _, name = proof.partition("::")
        assert name in named_in(path), proof
