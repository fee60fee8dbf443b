"""Call the counter stores for the event loop: their calls block, so a thread makes them.

One thread makes all calls of one kind, in order. If a store or the ledger blocks it, the requests
that wait are rejected (529) after ``max_wait_s``, so that no queue builds up.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from proxy.conf import conf
from proxy.gateway.http.errors import too_busy

WAIT_S: Final = 2.0
REDIS_TIMEOUTS: Final = 10

Result = TypeVar("Result")


def max_wait_s() -> float:
    """Return the seconds that a request waits for a call. Most calls take less than 1 ms.

    A few calls that wait for an unavailable Redis do not mean overload yet.
    """
    return WAIT_S + REDIS_TIMEOUTS * conf.redis_timeout_s


class CounterThread:
    """A thread that calls a counter store. Its queue preserves the order of the calls."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def submit(self, call: Callable[..., Result], *arguments: object) -> "Future[Result]":
        """Make the call later. Nothing waits for it, so it is never rejected."""
        return self._pool.submit(call, *arguments)

    async def wait_for(self, made: "Future[Result]") -> Result:
        """Return the result of a submitted call.

        Raises HttpError 529 if the call takes too long. A call that has not begun by then is
        canceled, and so is one whose task is canceled; a call that has begun continues without the
        task.
        """
        try:
            async with asyncio.timeout(max_wait_s()):
                return await asyncio.wrap_future(made)
        except TimeoutError:
            raise too_busy("counters") from None
