"""Worlds from seeds: minutes of the gateway's life each, with every kind of trouble, and no fault.

What fails names its seeds, each with the command that plays it again. ``python -m tests.simulation``
plays more of them than a push does.
"""

import asyncio
import gc
from collections import Counter
from pathlib import Path

import pytest

from proxy.gateway.ledger import Exchange

from .clock import Stuck, VirtualLoop
from .world import World, again

WORLDS = 500  # on each push, of ten minutes and 200 requests: promises.md, G08
REQUESTS = 200
IN_A_TEST = 25  # ten seconds; four times that where a machine is slow
SMALL = 40  # requests, where a world stands for many
FOUND = [
    (9, 60),  # an interrupted row called its estimate reported
    (45, 60),  # bytes that are no text were handed on where they stood beside the JSON
    (213, 100),  # who left while it was told a refusal had no row until the next start
    (47, 60),  # a ping began a second answer while a slow client was told a refusal
    (20129, 200),  # an event whose blank line was cut was ended by one and a half
    (545, 200),  # a deadline cut the refusal that a slow client was being told
]
"""Worlds that once were not well, with the number of their requests."""


@pytest.mark.parametrize("first", range(1, WORLDS + 1, IN_A_TEST))
def test_worlds_keep_their_promises(first: int, tmp_path: Path):
    told = [World(first + n, REQUESTS, tmp_path).run() for n in range(IN_A_TEST)]

    assert {again(one.seed, REQUESTS): one.faults for one in told if one.faults} == {}


@pytest.mark.parametrize(("seed", "requests"), FOUND)
def test_a_world_that_was_not_well_is_mended(seed: int, requests: int, tmp_path: Path):
    told = World(seed, requests, tmp_path).run()

    assert told.faults == []


def test_these_worlds_see_every_kind_of_end(tmp_path: Path):
    """Else they would prove little: a seed without trouble is always well."""
    seen = set()
    for seed in range(1, 25, 3):
        seen |= set(World(seed, SMALL, tmp_path).run().outcomes)

    assert seen >= {"completed", "client_gone", "interrupted", "upstream_error", "upstream_timeout"}


def test_a_seed_tells_the_same_story_again(tmp_path: Path):
    first, again = (World(5, SMALL, tmp_path).run() for _ in range(2))

    assert first.trace == again.trace
    assert World(6, SMALL, tmp_path).run().trace != first.trace


def test_an_hour_of_waiting_takes_no_time_and_a_wait_for_nothing_is_a_fault():
    loop = VirtualLoop()
    try:
        loop.run_until_complete(asyncio.sleep(3_600))
        assert loop.time() == pytest.approx(3_600)
        with pytest.raises(Stuck):
            loop.run_until_complete(loop.create_future())
    finally:
        loop.close()


def test_a_gateway_that_dials_before_it_writes_is_caught(tmp_path: Path, monkeypatch):
    """The judges are awake."""

    async def at_once(exchange: Exchange) -> None:
        exchange.accepted = True

    monkeypatch.setattr(Exchange, "durable", at_once)
    told = [World(seed, SMALL, tmp_path).run() for seed in range(1, 5)]

    assert any("before its record was on the disk" in fault for one in told for fault in one.faults)


def test_an_answer_that_ended_is_freed_at_once(tmp_path: Path):
    """What waited for the collector, which comes seldom, was all that had been said."""
    gc.collect()
    others = [one for one in gc.get_objects() if type(one) is Exchange]  # and kept
    gc.disable()
    try:
        told = World(3, SMALL, tmp_path).run()
        known = {id(one) for one in others}
        here = [one for one in gc.get_objects() if type(one) is Exchange]
        left = [one for one in here if id(one) not in known]
    finally:
        gc.enable()

    ends = Counter(one.consumer.closing.outcome for one in left if one.consumer.closing)
    assert told.outcomes["completed"] > 5
    assert ends["completed"] == ends["client_gone"] == 0
