"""How a request that waits for its record hears that it is on the disk, or that it cannot be."""

import asyncio
import contextlib
from collections.abc import Callable


class Landing:
    """Made in the event loop that waits, which it does in ``landed``.

    ``withdraw`` is called, in the loop, when the record landed and whoever waited had gone.
    """

    __slots__ = ("_withdraw", "future", "loop")

    def __init__(
        self, withdraw: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """``loop``: the running one, where it is known: to ask for it is a system call."""
        self.loop = loop or asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self._withdraw = withdraw

    def land(self, error: Exception | None) -> None:
        """In its loop."""
        try:
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)
        except asyncio.InvalidStateError:  # it was cancelled
            if error is None:
                self._withdraw()

    async def landed(self) -> None:
        """Returns when the record is on the disk. Raises SpoolUnavailable."""
        try:
            await self.future
        except asyncio.CancelledError:  # maybe in the moment in which it landed
            if not self.future.cancelled() and self.future.exception() is None:
                self._withdraw()
            raise


class Elsewhere:
    """A landing in another loop than the one that hears of it."""

    def __init__(self, landing: Landing) -> None:
        self._landing = landing

    def land(self, error: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # closed: nobody waits there any more
            self._landing.loop.call_soon_threadsafe(self._landing.land, error)
