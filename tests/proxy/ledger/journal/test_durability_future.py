"""A request that waits for its record gets one result, and none if it was cancelled."""

import asyncio

import pytest

from proxy.ledger.errors import JournalUnavailable
from proxy.ledger.journal.journal import DurabilityFuture
from tests.for_each import for_each


def nothing() -> None:
    pytest.fail("withdrawn, and a caller got a result")


async def test_request_that_waits_returns_when_its_record_is_durable() -> None:
    future = DurabilityFuture(nothing)

    future.resolve(None)

    await future.wait()


async def test_record_that_cannot_be_written_raises_where_it_is_awaited() -> None:
    future = DurabilityFuture(nothing)

    future.resolve(JournalUnavailable("full"))

    with pytest.raises(JournalUnavailable, match="full"):
        await future.wait()


@for_each(("error", "times"), [(None, 1), (JournalUnavailable("full"), 0)])
async def test_record_durable_after_its_caller_was_cancelled_is_withdrawn(
    error: Exception | None, times: int
) -> None:
    withdrawn: list[bool] = []
    future = DurabilityFuture(lambda: withdrawn.append(True))
    future.future.cancel()

    future.resolve(error)

    assert len(withdrawn) == times


@for_each(("error", "times"), [(None, 1), (JournalUnavailable("full"), 0)])
async def test_caller_cancelled_in_the_same_moment_withdraws_the_record(
    error: Exception | None, times: int
) -> None:
    withdrawn: list[bool] = []
    future = DurabilityFuture(lambda: withdrawn.append(True))
    waiting = asyncio.create_task(future.wait())
    await asyncio.sleep(0)  # it waits
    future.resolve(error)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(withdrawn) == times
