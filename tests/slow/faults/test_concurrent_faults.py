"""Every fault again with other cuts and concurrently with other faults.

The fast lane has one seed and only the faults of ``COMPANIONS``. Pairs are in the slow lane: with a
seed, each fault already runs concurrently with others. ``BRIDGE_FAULT_SEEDS`` is the number of seeds. ``BRIDGE_FAULT_PAIRS``
selects the pairs: ``some``, each companion on one database, or ``all``, each companion on both.
"""

import os
import random

import pytest

from tests.lanes import is_slow, repeat

from .catalogue import Case, Fault, catalogue
from .concurrent_faults import (
    COMPANIONS,
    RUN_ALONE,
    WAITING,
    at_once,
    concurrent_faults,
    packets,
    random_case,
    runs_with_others,
)
from .conftest import DATABASES
from .environment.invariants import World
from .test_faults import CaseResult, assert_all_results, run_case

SEEDS = repeat(fast=1, slow=16, variable="BRIDGE_FAULT_SEEDS")
PAIRS = os.environ.get("BRIDGE_FAULT_PAIRS", "some")

SEEDED = [(DATABASES[seed % 2], seed) for seed in range(SEEDS)]
PAIRED = [
    (database, companion)
    for n, companion in enumerate(COMPANIONS)
    for database in (DATABASES if PAIRS == "all" else DATABASES[n % 2 :][:1])
]


@pytest.mark.repeated
@pytest.mark.timeout(290)
@pytest.mark.parametrize(("world", "seed"), SEEDED, indirect=["world"])
def test_every_fault_with_seeded_variant_and_cuts(world: World, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - seeded for repeatable tests
    cases = [random_case(fault, n, rng) for n, fault in enumerate(seeded_faults())]
    rng.shuffle(cases)

    run_concurrently(world, cases, seed)


def seeded_faults() -> list[Fault]:
    """Return the faults that run with a seed."""
    return [each for each in concurrent_faults() if is_slow() or each.number in COMPANIONS]


@pytest.mark.slow
@pytest.mark.timeout(290)
@pytest.mark.parametrize(("world", "companion"), PAIRED, indirect=["world"])
def test_every_fault_concurrently_with_another(world: World, companion: str) -> None:
    rng = random.Random(companion)  # noqa: S311 - seeded for repeatable tests
    beside = catalogue()[companion]
    pairs = [each for fault in concurrent_faults() for each in (fault, beside)]
    cases = [random_case(fault, n, rng) for n, fault in enumerate(pairs)]

    run_concurrently(world, cases, companion)


def run_concurrently(world: World, cases: list[Case], seed: int | str) -> None:
    """Run the cases, some at a time, in this order; then check the invariants."""
    world.mark()

    def run_one(case: Case) -> CaseResult:
        return run_case(world, case, random.Random(f"{seed} {case.id}"))  # noqa: S311 - seeded

    assert_all_results(world, at_once(run_one, cases))


def test_named_faults_exist_and_most_can_run_concurrently():
    assert {*COMPANIONS, *WAITING, *RUN_ALONE} <= {*catalogue()}
    assert all(runs_with_others(catalogue()[number]) for number in (*COMPANIONS, *WAITING))
    assert len(COMPANIONS) == 12
    assert len(concurrent_faults()) > 60


@pytest.mark.parametrize("size", [0, 1, 2, 7, 900])
def test_joined_packets_equal_the_input(size: int):
    raw = bytes(n % 251 for n in range(size))
    for seed in range(50):
        cut_packets = list(packets(raw, random.Random(seed)))  # noqa: S311 - seeded for repeatable tests
        assert b"".join(cut_packets) == raw
        assert size == 0 or all(cut_packets)
