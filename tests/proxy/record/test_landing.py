"""Whoever waits for a record in an event loop hears of it once, also when it no longer waits."""

import asyncio

import pytest

from proxy.record.errors import SpoolUnavailable
from proxy.record.landing import Landing, is_wanted, tell


def nothing() -> None:
    pytest.fail("withdrawn, and somebody was told")


async def test_all_that_was_written_together_is_told_from_another_thread() -> None:
    landings = [Landing(nothing) for _ in range(5)]

    await asyncio.to_thread(tell, [*landings, None])

    await asyncio.wait_for(asyncio.gather(*(one.future for one in landings)), 10)


async def test_what_could_not_be_written_raises_where_it_is_awaited() -> None:
    landing = Landing(nothing)

    await asyncio.to_thread(tell, [landing], SpoolUnavailable("full"))

    with pytest.raises(SpoolUnavailable, match="full"):
        await asyncio.wait_for(landing.future, 10)


async def test_who_left_before_it_was_written_wants_nothing_written() -> None:
    landing = Landing(nothing)
    wanted = is_wanted(landing)
    landing.future.cancel()

    assert (wanted, is_wanted(landing), is_wanted(None)) == (True, False, True)


@pytest.mark.parametrize(("error", "times"), [(None, 1), (SpoolUnavailable("full"), 0)])
async def test_what_lands_after_its_waiter_has_gone_is_withdrawn_if_it_was_written(
    error: Exception | None, times: int
) -> None:
    withdrawn: list[bool] = []
    landing = Landing(lambda: withdrawn.append(True))
    landing.future.cancel()

    tell([landing], error)
    await asyncio.sleep(0)

    assert len(withdrawn) == times


@pytest.mark.parametrize(("error", "times"), [(None, 1), (SpoolUnavailable("full"), 0)])
async def test_a_waiter_cancelled_in_the_moment_of_landing_withdraws_as_well(
    error: Exception | None, times: int
) -> None:
    withdrawn: list[bool] = []
    landing = Landing(lambda: withdrawn.append(True))
    landing.land(error)

    landing.land_unheard()

    assert len(withdrawn) == times


async def test_a_loop_that_has_ended_is_passed_over() -> None:
    async def waiting() -> Landing:
        return Landing(nothing)

    landing = await asyncio.to_thread(asyncio.run, waiting())

    tell([landing])

    assert not landing.future.done()
