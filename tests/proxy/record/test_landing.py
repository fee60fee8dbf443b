"""Whoever waits for a record in an event loop hears of it once, also when it no longer waits."""

import asyncio

import pytest

from proxy.record.errors import SpoolUnavailable
from proxy.record.landing import Landing


def nothing() -> None:
    pytest.fail("withdrawn, and somebody was told")


async def test_who_waits_is_told() -> None:
    landing = Landing(nothing)

    landing.land(None)

    await landing.landed()


async def test_what_could_not_be_written_raises_where_it_is_awaited() -> None:
    landing = Landing(nothing)

    landing.land(SpoolUnavailable("full"))

    with pytest.raises(SpoolUnavailable, match="full"):
        await landing.landed()


@pytest.mark.parametrize(("error", "times"), [(None, 1), (SpoolUnavailable("full"), 0)])
async def test_what_lands_after_its_waiter_has_gone_is_withdrawn_if_it_was_written(
    error: Exception | None, times: int
) -> None:
    withdrawn: list[bool] = []
    landing = Landing(lambda: withdrawn.append(True))
    landing.future.cancel()

    landing.land(error)

    assert len(withdrawn) == times


@pytest.mark.parametrize(("error", "times"), [(None, 1), (SpoolUnavailable("full"), 0)])
async def test_a_waiter_cancelled_in_the_moment_of_landing_withdraws_as_well(
    error: Exception | None, times: int
) -> None:
    withdrawn: list[bool] = []
    landing = Landing(lambda: withdrawn.append(True))
    waiting = asyncio.create_task(landing.landed())
    await asyncio.sleep(0)  # it waits
    landing.land(error)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(withdrawn) == times
