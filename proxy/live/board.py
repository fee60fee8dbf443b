"""The board on which the processes of an installation tell each other what runs.

While somebody watches, each process writes its running requests on it, at most twice a second. Who
wants a request stopped that runs elsewhere writes an order on it. It hangs wherever the processes
keep their limits: a file for those of one machine, Redis for many. One process alone needs none.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from proxy.conf import conf
from proxy.counters.states import RedisStates, SqliteStates, States, Texts

from .running import Row

FILE: Final = "live.sqlite3"
WATCHED_S: Final = 5.0
"""A watcher is believed for so long."""
STALE_S: Final = 10.0
"""What a process said longer ago is nothing: it died, or lost its connection to the board."""
ORDER_S: Final = 30.0
MEMBER_S: Final = 60.0

WATCH: Final = "live watch"
ORDERS: Final = "live orders"
MEMBERS: Final = "live members"

_encode: Final = msgspec.json.Encoder().encode


class Page(msgspec.Struct):
    """What one process says. ``at`` in Unix seconds."""

    at: float
    rows: list[dict[str, Any]] = []


_page: Final = msgspec.json.Decoder(Page).decode
_times: Final = msgspec.json.Decoder(dict[str, float]).decode
_orders: Final = msgspec.json.Decoder(dict[str, tuple[str, float]]).decode


class Board:
    """One process's view of the board; ``me`` is its name. All methods raise ``StoreAway``."""

    def __init__(self, states: States, me: str, clock: Callable[[], float] = time.time) -> None:
        self._states = states
        self._me = me
        self._clock = clock
        self._listed = 0.0
        self._watching = 0.0

    def read(self) -> tuple[bool, dict[str, str]]:
        """Whether somebody watches; and the orders: who wants which request stopped."""
        watch, orders = self._states.read([WATCH, ORDERS])
        now = self._clock()
        until = _said(watch, _times, {}).get("until", 0.0)
        standing = _said(orders, _orders, {})
        return until > now, {name: who for name, (who, at) in standing.items() if at > now}

    def write(self, rows: Sequence[Row]) -> None:
        """What runs here, for the others."""
        now = self._clock()
        page = _encode(Page(now, [dict(row) for row in rows])).decode()
        self._states.update([f"live {self._me}"], lambda _: [page])
        if now - self._listed > MEMBER_S / 2:
            self._list(now)

    def watch(self) -> list[Row]:
        """All that runs elsewhere; and let the others know that somebody looks."""
        now = self._clock()
        if now - self._watching > WATCHED_S / 2:
            text = _encode({"until": now + WATCHED_S}).decode()
            self._states.update([WATCH], lambda _: [text])
            self._watching = now
        others = [name for name in self._members(now) if name != self._me]
        pages = self._states.read([f"live {name}" for name in others]) if others else []
        rows: list[Row] = []
        for text_of_page in pages:
            page = _said(text_of_page, _page, Page(0.0))
            if page.at > now - STALE_S:
                rows += page.rows
        return rows

    def order(self, request_id: str, who: str) -> None:
        """Whoever runs this request: stop it."""
        now = self._clock()

        def add(texts: Texts) -> Sequence[str]:
            standing = _said(texts[0], _orders, {})
            kept = {name: order for name, order in standing.items() if order[1] > now}
            return [_encode({**kept, request_id: (who, now + ORDER_S)}).decode()]

        self._states.update([ORDERS], add)

    def leave(self) -> None:
        """Nothing on our page is true any longer: this process ends."""
        self._states.update([f"live {self._me}"], lambda _: [_encode(Page(0.0)).decode()])

    def _members(self, now: float) -> list[str]:
        times = _said(self._states.read([MEMBERS])[0], _times, {})
        return sorted(name for name, at in times.items() if at > now - MEMBER_S)

    def _list(self, now: float) -> None:
        def add(texts: Texts) -> Sequence[str]:
            times = _said(texts[0], _times, {})
            kept = {name: at for name, at in times.items() if at > now - MEMBER_S}
            return [_encode({**kept, self._me: now}).decode()]

        self._states.update([MEMBERS], add)
        self._listed = now


def _said(text: str | None, decode: Callable[[str], Any], nothing: Any) -> Any:
    """What is written; what nobody of us can have written is nothing."""
    try:
        return decode(text) if text else nothing
    except msgspec.DecodeError:
        return nothing


@cache
def shared_states() -> States | None:
    """None: this process is alone."""
    if conf.redis_url:
        from proxy.counters.redis_store import client_of  # noqa: PLC0415 - most have no Redis

        return RedisStates(client_of(conf.redis_url))
    return SqliteStates(conf.data_dir / FILE) if conf.workers > 1 else None
