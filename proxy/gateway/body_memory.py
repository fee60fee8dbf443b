"""What request bodies take of this process's memory, and the one thread that works on large ones.

Bytes are counted as they arrive, what decoding makes of them before it does. Beyond the limit new
requests are refused (529), so that many large bodies at once cannot take all memory.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

from proxy.conf import conf

from .refusals import too_busy

Result = TypeVar("Result")

_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")


class BodyMemory:
    """Bytes that the running requests hold. Only event loops change it."""

    def __init__(self) -> None:
        self.held = 0

    def change(self, before: int, now: int) -> int:
        """Replace a reservation of ``before`` bytes by one of ``now``; return ``now``.

        Raises Refusal 529 when there is no room for more. One request alone always has room.
        """
        others = self.held - before
        if now > before and others and others + now > conf.max_bodies_bytes:
            raise too_busy("bodies")
        self.held = others + now
        return now


body_memory: Final = BodyMemory()
"""Of this process."""


async def in_turn(work: Callable[..., Result], *arguments: object) -> Result:
    """Run ``work`` beside the event loop, after whatever else waits for the same.

    One at a time: they share the interpreter's lock, so together they are no faster, and hold the
    memory of all of them.
    """
    call = copy_context().run
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, call, work, *arguments)
