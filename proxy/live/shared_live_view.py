"""The shared store of the live view, by which processes exchange lists of their running requests.

While a live page is open, each process writes its running requests to the store, at most twice a
second. To stop requests of other processes, a process writes a stop order. The store is a file
on one machine, Redis for several. A single process needs no store.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from proxy.conf import conf
from proxy.counters.sqlite_store import SqliteStore
from proxy.counters.store import Texts, TextStore

from .running_requests import LiveRow, StopOrder

FILE: Final = "live.sqlite3"
WATCHED_S: Final = 5.0
"""How long a live page counts as open after its last read."""
STALE_S: Final = 10.0
"""Rows older than this are ignored, because their process has died or cannot reach the store."""
ORDER_S: Final = 30.0
MEMBER_S: Final = 60.0

WATCH: Final = "live watch"
ORDERS: Final = "live orders"
MEMBERS: Final = "live members"

_encode: Final = msgspec.json.Encoder().encode


class ProcessSnapshot(msgspec.Struct):
    """The running requests of one process as written at ``at`` (Unix seconds)."""

    at: float
    rows: list[dict[str, Any]] = []


_decode_snapshot: Final = msgspec.json.Decoder(ProcessSnapshot).decode
_decode_times: Final = msgspec.json.Decoder(dict[str, float]).decode
_decode_orders: Final = msgspec.json.Decoder(list[StopOrder]).decode


class LiveViewStore:
    """The store of the live view for the process named ``me``.

    Every method may raise StoreUnavailable.
    """

    def __init__(self, states: TextStore, me: str, clock: Callable[[], float] = time.time) -> None:
        self._states = states
        self._me = me
        self._clock = clock
        self._listed = 0.0
        self._watching = 0.0

    def read(self) -> tuple[bool, list[StopOrder]]:
        """Return whether a live page is open, and the stop orders."""
        watch, orders = self._states.read([WATCH, ORDERS])
        now = self._clock()
        until = _decode_or(watch, _decode_times, {}).get("until", 0.0)
        active = _decode_or(orders, _decode_orders, [])
        return until > now, [order for order in active if order.until > now]

    def write(self, rows: Sequence[LiveRow]) -> None:
        """Store the running requests of this process, and list it among the processes."""
        now = self._clock()
        snapshot = _encode(ProcessSnapshot(now, [dict(row) for row in rows])).decode()
        self._states.update([f"live {self._me}"], lambda _: [snapshot])
        if now - self._listed <= MEMBER_S / 2:
            return

        def add(texts: Texts) -> Sequence[str]:
            return [_encode({**_members(texts[0], now), self._me: now}).decode()]

        self._states.update([MEMBERS], add)
        self._listed = now

    def watch(self) -> list[LiveRow]:
        """Return the running requests of other processes; mark the live page as open."""
        now = self._clock()
        if now - self._watching > WATCHED_S / 2:
            watched = _encode({"until": now + WATCHED_S}).decode()
            self._states.update([WATCH], lambda _: [watched])
            self._watching = now
        members = _members(self._states.read([MEMBERS])[0], now)
        others = sorted(members.keys() - {self._me})
        snapshots = self._states.read([f"live {name}" for name in others]) if others else []
        rows: list[LiveRow] = []
        for text in snapshots:
            snapshot = _decode_or(text, _decode_snapshot, ProcessSnapshot(0.0))
            if snapshot.at > now - STALE_S:
                # A process of an earlier version writes rows without ids: nobody may see those.
                rows += [row for row in snapshot.rows if "team_id" in row]
        return rows

    def request_stop(self, order: StopOrder) -> None:
        """Write an order for the processes that run the requests; it is valid for ``ORDER_S``."""
        now = self._clock()
        new = order._replace(until=now + ORDER_S)

        def add(texts: Texts) -> Sequence[str]:
            active: list[StopOrder] = _decode_or(texts[0], _decode_orders, [])
            others = [old for old in active if old.until > now and old[:2] != new[:2]]
            return [_encode([*others, new]).decode()]

        self._states.update([ORDERS], add)

    def clear_own_rows(self) -> None:
        """Remove the rows of this process, which is about to end."""
        self._states.update(
            [f"live {self._me}"], lambda _: [_encode(ProcessSnapshot(0.0)).decode()]
        )


def _members(text: str | None, now: float) -> dict[str, float]:
    """Return the processes that wrote their rows in the last minute, and when."""
    times = _decode_or(text, _decode_times, {})
    return {name: at for name, at in times.items() if at > now - MEMBER_S}


def _decode_or(text: str | None, decode: Callable[[str], Any], default: Any) -> Any:
    """Decode a text from the store; return ``default`` if the text is missing or malformed."""
    try:
        return decode(text) if text else default
    except msgspec.DecodeError:
        return default


@cache
def shared_states() -> TextStore | None:
    """Return the store that all processes share, or None if there is only one process."""
    if conf.redis_url:
        from proxy.counters.redis_store import RedisStore  # noqa: PLC0415 - Redis is optional

        return RedisStore(conf.redis_url)
    return SqliteStore(conf.data_dir / FILE) if conf.workers > 1 else None
