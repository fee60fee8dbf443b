"""Load an ASGI application (the admin pages, the live feed) when its first request arrives."""

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any, Final

_LOADING: Final = threading.Lock()


class LazyApplication:
    """An ASGI application that its first request loads; concurrent requests wait for it.

    Loading runs in a thread, so that streams continue. The garbage collector is disabled, because
    it would stop all threads several times to scan new objects that all stay.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._application: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._application is None:
            await asyncio.to_thread(self._load_once)
        await self._application(scope, receive, send)

    def _load_once(self) -> None:
        with _LOADING:
            if self._application is not None:
                return
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                self._application = self._load()
                gc.freeze()
            finally:
                if was_enabled:
                    gc.enable()
