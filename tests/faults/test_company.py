"""Every fault again, told in other ways and beside other faults (G06).

``BRIDGE_FAULT_SEEDS`` is how many seeds, ``BRIDGE_FAULT_PAIRS=all`` meets every companion on both
databases; on a push they take turns.
"""

import os
import random

import pytest

from .catalogue import Case, catalogue
from .company import ALONE, COMPANIONS, at_once, bears_company, one_of, packets, sociable
from .conftest import DATABASES
from .test_faults import Played, assert_all_well, play
from .world import World

SEEDS = int(os.environ.get("BRIDGE_FAULT_SEEDS", "16"))
BOTH = os.environ.get("BRIDGE_FAULT_PAIRS") == "all"

SEEDED = [(DATABASES[seed % 2], seed) for seed in range(SEEDS)]
PAIRED = [
    (database, companion)
    for n, companion in enumerate(COMPANIONS)
    for database in (DATABASES if BOTH else DATABASES[n % 2 :][:1])
]


@pytest.mark.timeout(290)
@pytest.mark.parametrize(("world", "seed"), SEEDED, indirect=["world"])
def test_every_fault_as_a_seed_tells_it(world: World, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - seeded on purpose
    cases = [one_of(fault, n, chance) for n, fault in enumerate(sociable())]
    chance.shuffle(cases)

    meet(world, cases, seed)


@pytest.mark.timeout(290)
@pytest.mark.parametrize(("world", "companion"), PAIRED, indirect=["world"])
def test_every_fault_beside_another(world: World, companion: str) -> None:
    chance = random.Random(companion)  # noqa: S311 - seeded on purpose
    beside = catalogue()[companion]
    pairs = [each for fault in sociable() for each in (fault, beside)]
    cases = [one_of(fault, n, chance) for n, fault in enumerate(pairs)]

    meet(world, cases, companion)


def meet(world: World, cases: list[Case], seed: int | str) -> None:
    """Let them happen, some at a time, in this order; then ask after all."""
    world.mark()

    def happen(case: Case) -> Played:
        return play(world, case, random.Random(f"{seed} {case.id}"))  # noqa: S311 - seeded

    assert_all_well(world, at_once(happen, cases))


def test_all_who_are_named_exist_and_most_faults_are_sociable():
    assert {*COMPANIONS, *ALONE} <= {*catalogue()}
    assert all(bears_company(catalogue()[companion]) for companion in COMPANIONS)
    assert len(COMPANIONS) == 12
    assert len(sociable()) > 60


@pytest.mark.parametrize("size", [0, 1, 2, 7, 900])
def test_packets_are_the_same_bytes(size: int):
    raw = bytes(n % 251 for n in range(size))
    for seed in range(50):
        told = list(packets(raw, random.Random(seed)))  # noqa: S311 - seeded on purpose
        assert b"".join(told) == raw
        assert size == 0 or all(told)
