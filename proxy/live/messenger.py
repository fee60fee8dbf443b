"""Looks at the board for this process: a thread, only where there are other processes.

Once a second it asks whether anybody watches and whether a request of ours is to be stopped; while
somebody watches, twice a second, and it writes down what runs here.
"""

import contextlib
import logging
import threading
from typing import Final

from proxy.counters.store import StoreAway
from proxy.record.recorder import recorder

from .board import Board, shared_states
from .running import RUNNING, Row, glances, stop_here

log = logging.getLogger("proxy.live")

WATCHED_EVERY_S: Final = 0.5
IDLE_EVERY_S: Final = 1.0
AWAY_S: Final = 5.0


class Messenger:
    """``start`` it as often as you like."""

    def __init__(self) -> None:
        self.board: Board | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def start(self) -> None:
        states = shared_states()
        with self._lock:
            if states is None or self._thread is not None:
                return
            self.board = Board(states, recorder.worker)
            self._ending.clear()
            self._thread = threading.Thread(target=self._work, name="live-messenger", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
            self.board = None
        if thread is not None:
            self._ending.set()
            thread.join(5)

    def elsewhere(self) -> list[Row]:
        """What runs in other processes. Raises StoreAway."""
        board = self.board
        return board.watch() if board is not None else []

    def order(self, request_id: str, who: str) -> None:
        """Have it stopped wherever it runs. Raises StoreAway."""
        if not stop_here(request_id, who) and self.board is not None:
            self.board.order(request_id, who)

    def _work(self) -> None:
        board = self.board
        if board is None:
            return
        pause = IDLE_EVERY_S
        while not self._ending.wait(pause):
            try:
                pause = self._look(board)
            except StoreAway as exc:
                if pause != AWAY_S:
                    log.warning("live: %s; other processes' requests are not shown", exc)
                pause = AWAY_S
            except Exception:  # a bug must not end the thread: no order would be heard again
                log.exception("live: cannot look at the board")
                pause = AWAY_S
        with contextlib.suppress(StoreAway):  # what our page says is stale soon
            board.leave()

    def _look(self, board: Board) -> float:
        """Returns how long to wait for the next look."""
        watched, orders = board.read()
        for request_id in orders.keys() & RUNNING.keys():
            stop_here(request_id, orders[request_id])
        if not watched:
            return IDLE_EVERY_S
        board.write(glances())
        return WATCHED_EVERY_S


messenger: Final = Messenger()
