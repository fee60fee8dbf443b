"""A future by which a request waits until its journal record is on the disk or has failed."""

import asyncio
from collections.abc import Callable


class DurabilityFuture:
    """Create it in the event loop in which a caller will ``wait`` for the record.

    ``withdraw`` is called in that loop if the record became durable after its caller was cancelled.
    """

    __slots__ = ("_withdraw", "future", "loop")

    def __init__(
        self, withdraw: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Create the future in the running event loop; passing ``loop`` saves a system call."""
        self.loop = loop or asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self._withdraw = withdraw

    def resolve(self, error: Exception | None) -> None:
        """Set the result: ``error``, or success if it is None. Call this in the future's loop."""
        try:
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)
        except asyncio.InvalidStateError:  # the caller was cancelled
            if error is None:
                self._withdraw()

    async def wait(self) -> None:
        """Return when the record is on the disk. Raises JournalUnavailable."""
        try:
            await self.future
        except asyncio.CancelledError:
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """Let the record be withdrawn: now if it is durable, else when it has become so."""
        self.future.cancel()  # this has no effect on a future with a result
        if not self.future.cancelled() and self.future.exception() is None:
            self._withdraw()
