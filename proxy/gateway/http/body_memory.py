"""The memory limit for all request bodies of this process, and the thread that parses large bodies.

Received bytes are counted when they arrive, and the memory of the decoded values is counted before
decoding. Above the limit, new requests are rejected (529), so that many large bodies cannot use up
the memory.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

from proxy.conf import conf

from .errors import too_busy

Result = TypeVar("Result")

AT_ONCE_BYTES: Final = 64 * 1024
"""Work on a body of this size takes some milliseconds."""
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")


class BodyMemory:
    """The number of bytes reserved for running requests.

    Only code on the event loop may change it.
    """

    def __init__(self) -> None:
        self.reserved = 0

    def change(self, before: int, now: int) -> int:
        """Replace a reservation of ``before`` bytes by one of ``now`` bytes; return ``now``.

        Raises HttpError (529) if the limit is exceeded. If no other request has a reservation, any
        size is accepted.
        """
        others = self.reserved - before
        if now > before and others and others + now > conf.max_bodies_bytes:
            raise too_busy("bodies")
        self.reserved = others + now
        return now


body_memory: Final = BodyMemory()


async def run_in_body_thread(work: Callable[..., Result], *arguments: object) -> Result:
    """Run ``work`` in the thread for large bodies, after the calls that were queued earlier.

    There is only one such thread: parallel calls would share the GIL, so they would not be faster,
    but they would need memory for all bodies at once.
    """
    call = copy_context().run
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, call, work, *arguments)


async def run_by_size(body: bytes, work: Callable[..., Result], *arguments: object) -> Result:
    """Run ``work``, which reads a whole body: at once, or in the body thread if it is large."""
    if len(body) <= AT_ONCE_BYTES:
        return work(*arguments)
    return await run_in_body_thread(work, *arguments)
