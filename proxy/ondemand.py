"""What a gateway does without until somebody asks: its pages, and the live view's feed."""

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any, Final

_LOADING: Final = threading.Lock()


class OnDemand:
    """An ASGI application that the first who asks for it loads; the others wait beside it.

    In a thread, so that streams go on; and without the garbage collector, which would stop them
    several times to walk through what is loaded, none of which ever goes.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._application: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._application is None:
            await asyncio.to_thread(self._loaded)
        await self._application(scope, receive, send)

    def _loaded(self) -> None:
        with _LOADING:
            if self._application is not None:
                return
            collected = gc.isenabled()
            gc.disable()
            try:
                self._application = self._load()
                gc.freeze()
            finally:
                if collected:
                    gc.enable()
