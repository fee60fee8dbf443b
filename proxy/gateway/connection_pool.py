"""The connections to upstreams that wait for another request, and new ones.

HTTP/1.1 matches responses to requests by their order alone. A response that no request asked for
would be delivered to the next client of its connection, and shift all that follow. So whatever
arrives on a connection that waits closes it, the kernel's buffer is looked at before each reuse,
and an origin that sent such bytes is not kept alive for a while. What arrives after the next
request is wholly sent cannot be recognised: ``connection_reuse`` of an upstream says whose
requests may share a connection.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import aiohappyeyeballs

from proxy.metrics.catalogue import STRAYS

from .reporting import metrics
from .wire import ConnectTimeout, Origin, Unreachable, When, Wire

log = logging.getLogger("proxy.gateway")

IDLE_S: Final = 60.0  # under the 75 s after which common servers hang up on us
MOST_IDLE: Final = 2_000  # connections of one event loop
DISTRUST_S: Final = 300.0  # how long an origin is not kept alive after a stray response
RETIRE_S: Final = 1.0  # until the event loop has read what had arrived before a reuse
ADDRESSES_S: Final = 30.0  # a name is looked up again after that
SECOND_ADDRESS_S: Final = 0.25  # head start of the first address over the next (RFC 8305)

SHARED: Final = 0
"""Whose connections: everybody's. A key's own are under its id, which is above 0."""
UNKEPT: Final = -1
OWNERS: Final = {"shared": SHARED, "never": UNKEPT}
"""By ``connection_reuse``; ``key``: the id of the gateway key."""


class Pool:
    """The connections of one event loop. As many as are asked for: who may call is decided before.

    ``trusted`` is asked for the TLS context when the first one is needed.
    """

    def __init__(self, trusted: Callable[[], ssl.SSLContext]) -> None:
        self._trusted = trusted
        self._context: ssl.SSLContext | None = None
        self._idle: dict[tuple[Origin, int], list[tuple[float, Wire]]] = {}
        self._waiting = 0  # connections in ``_idle``
        self._distrusted: dict[Origin, float] = {}  # until when
        self._addresses: dict[tuple[str, int], tuple[float, list[Any]]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def idle(self, origin: Origin, owner: int = SHARED) -> Wire | None:
        """A connection that has served before: the last one used is the likeliest to live."""
        waiting = self._idle.get((origin, owner))
        while waiting:
            since, wire = waiting.pop()
            self._waiting -= 1
            if not wire.is_free or wire.loop.time() - since >= IDLE_S:
                wire.close()
            elif wire.has_arrived():  # the event loop reads it, and closes the connection
                wire.loop.call_later(RETIRE_S, wire.close)  # TLS may have kept it to itself
            else:
                return wire
        return None

    async def connect(self, origin: Origin, within_s: float) -> Wire:
        """A new connection. Raises ConnectTimeout, Unreachable, or ``ssl.SSLError``."""
        try:
            async with asyncio.timeout(within_s):
                return await self._connected(origin)
        except ssl.SSLError:
            raise
        except OSError as exc:  # a timeout is one, too
            self._addresses.pop((origin.host, origin.port), None)
            late = isinstance(exc, TimeoutError)
            raise (ConnectTimeout if late else Unreachable)(str(exc)) from exc

    def give_back(self, wire: Wire, origin: Origin, owner: int = SHARED) -> None:
        """Keep it for the next request, or close it where there can be none."""
        if (
            owner == UNKEPT
            or not wire.is_free
            or self._waiting >= MOST_IDLE
            or (self._distrusted and self._is_distrusted(origin, wire.loop.time()))
        ):
            wire.close()
            return
        place = origin, owner
        if place not in self._idle:
            self._idle[place] = []
        self._idle[place].append((wire.loop.time(), wire))
        self._waiting += 1
        if self._sweep is None:
            self._sweep = wire.loop.call_later(IDLE_S, self._tidy)

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for place in list(self._idle):
            self._drop(place)

    def _drop(self, place: tuple[Origin, int]) -> None:
        for _, wire in self._idle.pop(place):
            self._waiting -= 1
            wire.close()

    def _is_distrusted(self, origin: Origin, now: float) -> bool:
        until = self._distrusted.get(origin, 0.0)
        if 0.0 < until <= now:
            del self._distrusted[origin]
        return until > now

    def _on_stray(self, origin: Origin, wire: Wire, when: When) -> None:
        """Count it, and neither keep nor reuse a connection of this origin for a while.

        Logged once in that time: an origin may do it with each response.
        """
        metrics.add(STRAYS, (wire.upstream, when))
        now = wire.loop.time()
        if not self._is_distrusted(origin, now):
            log.warning(
                "upstream %s sent bytes that no request had asked for (%s): that connection is "
                "closed, and none to it is used twice for %.0f s",
                wire.upstream, when.replace("_", " "), DISTRUST_S,
            )  # fmt: skip
        self._distrusted[origin] = now + DISTRUST_S
        for place in [place for place in self._idle if place[0] == origin]:
            self._drop(place)

    async def _connected(self, origin: Origin) -> Wire:
        loop = asyncio.get_running_loop()
        addresses = await self._looked_up(origin)
        made = partial(Wire, partial(self._on_stray, origin))
        wire: Wire
        if len(addresses) == 1 and addresses[0][0] == socket.AF_INET:
            # No address to race against: 68 calls and 120 µs less of the first byte.
            tcp, wire = await loop.create_connection(made, *addresses[0][4])
        else:
            sock = await aiohappyeyeballs.start_connection(
                addresses, happy_eyeballs_delay=SECOND_ADDRESS_S, loop=loop
            )
            try:
                tcp, wire = await loop.create_connection(made, sock=sock)
            except BaseException:
                sock.close()
                raise
        if origin.tls:
            self._context = self._context or self._trusted()
            secured = await loop.start_tls(tcp, wire, self._context, server_hostname=origin.host)
            if secured is None:
                raise ConnectionAbortedError("the connection was closed during the TLS handshake")
            wire.connection_made(secured)
        return wire

    async def _looked_up(self, origin: Origin) -> list[Any]:
        key = (origin.host, origin.port)
        loop = asyncio.get_running_loop()
        known = self._addresses.get(key)
        if known is not None and loop.time() - known[0] < ADDRESSES_S:
            return known[1]
        found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        self._addresses[key] = (loop.time(), found)
        return found

    def _tidy(self) -> None:
        """Let go of what has waited for too long."""
        loop = asyncio.get_running_loop()
        self._sweep = None
        for place, waiting in list(self._idle.items()):
            kept = []
            for since, wire in waiting:
                if loop.time() - since < IDLE_S and wire.is_free:
                    kept.append((since, wire))
                else:
                    self._waiting -= 1
                    wire.close()
            if kept:
                self._idle[place] = kept
            else:
                del self._idle[place]
        if self._idle:
            self._sweep = loop.call_later(IDLE_S, self._tidy)
