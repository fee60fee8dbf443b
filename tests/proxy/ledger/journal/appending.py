"""Append records to a journal as an event loop does."""

import asyncio
from collections.abc import Callable

from proxy.ledger.journal.journal import DurabilityFuture, Journal
from proxy.ledger.journal.records import Record
from tests.waiting import until


def appended(journal: Journal, record: Record) -> DurabilityFuture:
    future = DurabilityFuture(lambda: None)
    journal.append(record, future)
    return future


async def append_all(journal: Journal, *records: Record) -> None:
    """Return when all are durable."""
    futures = [appended(journal, record) for record in records]
    await asyncio.wait_for(asyncio.gather(*(each.wait() for each in futures)), 60)


async def eventually(true: Callable[[], object]) -> None:
    await asyncio.to_thread(until, true)
