"""Simulated worlds from seeds, each some minutes of the gateway with many kinds of failures.

A failing test prints the command that runs the world again. ``python -m tests.slow.simulation`` runs
more worlds.
"""

import asyncio
import gc
from collections import Counter
from pathlib import Path

import pytest

from proxy.gateway.exchange.request_context import RequestContext
from tests.lanes import repeat

from .clock import Deadlock, VirtualLoop
from .world import World, reproduce_command

WORLDS = repeat(fast=5, slow=500)  # of ten minutes and 200 requests
REQUESTS = 200
WORLDS_PER_TEST = min(25, WORLDS)  # ten seconds; forty on a slow machine
FEW_REQUESTS = 40  # requests, for tests that need only a short world
FIXED = [
    (9, 60),  # an interrupted row had its estimate as reported
    (45, 60),  # bytes that are not UTF-8 beside the JSON were passed on
    (
        213,
        100,
    ),  # a client that disconnected during an error response had no row until the next start
    (47, 60),  # a ping started a second response while a slow client received an error
    (20129, 200),  # an event with a cut blank line was ended by one and a half
    (545, 200),  # a deadline cut the error response of a slow client
]
"""Seeds of worlds that once had faults, with their number of requests."""


@pytest.mark.repeated
@pytest.mark.parametrize("first", range(1, WORLDS + 1, WORLDS_PER_TEST))
def test_worlds_have_no_faults(first: int, tmp_path: Path):
    results = [World(first + n, REQUESTS, tmp_path).run() for n in range(WORLDS_PER_TEST)]

    assert {
        reproduce_command(one.seed, REQUESTS): one.faults for one in results if one.faults
    } == {}


@pytest.mark.parametrize(("seed", "requests"), FIXED)
def test_fixed_world_has_no_faults(seed: int, requests: int, tmp_path: Path):
    results = World(seed, requests, tmp_path).run()

    assert results.faults == []


def test_worlds_have_every_kind_of_outcome(tmp_path: Path):
    """Worlds without failures would prove little."""
    seen = set()
    for seed in range(1, 25, 3):
        seen |= set(World(seed, FEW_REQUESTS, tmp_path).run().outcomes)

    assert seen >= {"completed", "client_gone", "interrupted", "upstream_error", "upstream_timeout"}


def test_same_seed_gives_the_same_trace(tmp_path: Path):
    first, second = (World(5, FEW_REQUESTS, tmp_path).run() for _ in range(2))

    assert first.trace == second.trace
    assert World(6, FEW_REQUESTS, tmp_path).run().trace != first.trace


def test_virtual_clock_skips_waits_and_detects_a_deadlock():
    loop = VirtualLoop()
    try:
        loop.run_until_complete(asyncio.sleep(3_600))
        assert loop.time() == pytest.approx(3_600)
        with pytest.raises(Deadlock):
            loop.run_until_complete(loop.create_future())
    finally:
        loop.close()


def test_call_before_the_durable_record_is_a_fault(tmp_path: Path, monkeypatch):
    """The checks detect a broken gateway."""

    async def skip_wait(exchange: RequestContext) -> None:
        exchange.admission.accepted = True

    # A bug is planted: the simulation must find it.
    monkeypatch.setattr(RequestContext, "wait_until_recorded", skip_wait)
    results = [World(seed, FEW_REQUESTS, tmp_path).run() for seed in range(1, 5)]

    assert any(
        "before its record was on the disk" in fault for one in results for fault in one.faults
    )


def test_finished_request_is_freed_without_the_garbage_collector(tmp_path: Path):
    """A request in a reference cycle would keep the whole response in memory."""
    gc.collect()
    existing = [one for one in gc.get_objects() if type(one) is RequestContext]
    gc.disable()
    try:
        results = World(3, FEW_REQUESTS, tmp_path).run()
        known_ids = {id(one) for one in existing}
        current = [one for one in gc.get_objects() if type(one) is RequestContext]
        leaked = [one for one in current if id(one) not in known_ids]
    finally:
        gc.enable()

    ends = Counter(one.ending.record.outcome for one in leaked if one.ending.record)
    assert results.outcomes["completed"] > 5
    assert ends["completed"] == ends["client_gone"] == 0
