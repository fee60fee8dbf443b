"""Synchronize this process with the shared live view, in a thread, if there are other processes.

Once a second the thread reads from the shared store whether a live page is open and which requests
to stop. While a live page is open, the thread does so twice a second, and also writes the running
requests of this process.
"""

import contextlib
import logging
import threading
import time
from typing import Final

from proxy.counters.store import StoreUnavailable

from .running_requests import LiveRow, StopOrder, running_rows, stop_here, stop_selected
from .shared_live_view import LiveViewStore, shared_states

log = logging.getLogger("proxy.live")

WATCHED_EVERY_S: Final = 0.5
IDLE_EVERY_S: Final = 1.0
UNAVAILABLE_S: Final = 5.0


class LiveViewSync:
    """The synchronization thread. ``start`` may be called more than once."""

    def __init__(self) -> None:
        self.store: LiveViewStore | None = None
        self._read_orders: frozenset[StopOrder] = frozenset()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def start(self, worker: str) -> None:
        """Start the thread. ``worker``: the name of this process in the shared store."""
        states = shared_states()
        with self._lock:
            if states is None or self._thread is not None:
                return
            self.store = LiveViewStore(states, worker)
            self._ending.clear()
            self._thread = threading.Thread(target=self._work, name="live-view-sync", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
            self.store = None
        if thread is not None:
            self._ending.set()
            thread.join(5)

    def rows_elsewhere(self) -> list[LiveRow]:
        """Return the running requests of other processes. Raises StoreUnavailable."""
        store = self.store
        return store.watch() if store is not None else []

    def request_stop(self, request_id: str, who: str) -> None:
        """Stop a request of this process or of another one. Raises StoreUnavailable."""
        if not stop_here(request_id, who) and self.store is not None:
            self.store.request_stop(StopOrder("id", request_id, who))

    def request_stop_all(self, column: str, value: str | int, who: str) -> None:
        """Stop the requests of all processes whose live row has this value in this column.

        Each process does so once, when it reads the order, within about a second. Raises
        StoreUnavailable, after the requests of this process were stopped.
        """
        order = StopOrder(column, value, who, given=time.time())
        stop_selected(order)
        if self.store is not None:
            self.store.request_stop(order)

    def _work(self) -> None:
        store = self.store
        if store is None:
            return
        pause = IDLE_EVERY_S
        while not self._ending.wait(pause):
            try:
                pause = self._sync(store)
            except StoreUnavailable as exc:
                if pause != UNAVAILABLE_S:
                    log.warning("live: %s; other processes' requests are not shown", exc)
                pause = UNAVAILABLE_S
            except Exception:  # a bug must not end the thread: stop orders would be ignored
                log.exception("live: cannot read the store")
                pause = UNAVAILABLE_S
        # If the store is unavailable, the rows of this process expire soon anyway.
        with contextlib.suppress(StoreUnavailable):
            store.clear_own_rows()

    def _sync(self, store: LiveViewStore) -> float:
        """Synchronize once; return the seconds until the next synchronization."""
        watched, orders = store.read()
        new = frozenset(orders) - self._read_orders
        self._read_orders = frozenset(orders)
        for order in new:
            stop_selected(order)
        if not watched:
            return IDLE_EVERY_S
        store.write(running_rows())
        return WATCHED_EVERY_S


live_view_sync: Final = LiveViewSync()
