"""How a request that waits for its record hears that it is on the disk, or that it cannot be."""

import asyncio
from collections.abc import Callable


class Landing:
    """Made in the event loop that waits; ``await`` its ``future``.

    ``withdraw`` is called, in the loop, when the record landed and whoever waited had gone.
    """

    __slots__ = ("_withdraw", "future", "loop")

    def __init__(self, withdraw: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self._withdraw = withdraw

    def land(self, error: Exception | None) -> None:
        if self.future.cancelled():
            if error is None:
                self._withdraw()
        elif error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)

    def land_unheard(self) -> None:
        """Whoever waited was cancelled in the moment in which the record landed."""
        if self.future.exception() is None:
            self._withdraw()
