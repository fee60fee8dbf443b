"""The pool of connections to upstreams: reuse idle connections or open new ones.

HTTP/1.1 matches responses to requests only by their order. A stray response, which belongs to no
request, would be taken for the response to the next request on its connection, and each later
response would go to the wrong request. So an idle connection is closed when any byte arrives on it,
the socket is checked before each reuse, and connections to an origin that sent stray bytes are not
reused for a while. A stray response that arrives after the next request was sent cannot be
recognized. Therefore the upstream's setting ``connection_reuse`` defines which requests may share a
connection.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import aiohappyeyeballs

from proxy.gateway.snapshot.request_head import Origin
from proxy.metrics.definitions import STRAY_RESPONSES
from proxy.models.setup.upstream_connection import HttpProxy, TlsFiles
from proxy.secrets import ConfigError
from proxy.url_hosts import address_of, is_forbidden

from .connection import (
    ConnectError,
    ConnectTimeout,
    ProxyTunnel,
    ProxyUnreachable,
    ProxyUntrusted,
    StrayTiming,
    UpstreamConnection,
)

log = logging.getLogger("proxy.gateway")

IDLE_S: Final = 60.0  # less than the 75 s after which common servers close idle connections
MAX_IDLE: Final = 2_000  # idle connections of one event loop
DISTRUST_S: Final = 300.0  # how long connections to an origin are not reused after stray bytes
RETIRE_S: Final = 1.0  # enough time for the event loop to read the bytes that arrived
ADDRESSES_S: Final = 30.0  # seconds for which a DNS result is cached
# Seconds by which the first address is tried before the next (RFC 8305).
SECOND_ADDRESS_S: Final = 0.25

SHARED: Final = 0
"""The owner of the connections that all gateway keys share. The owner of a key's own connections is
the id of the key, which is above 0."""
NOT_REUSED: Final = -1
OWNERS: Final = {"shared": SHARED, "never": NOT_REUSED}
"""The owner of a connection, by the setting ``connection_reuse``. For ``key``, the owner is the id
of the gateway key."""


class ConnectionPool:
    """The upstream connections of one event loop.

    The number of connections has no limit, because the number of requests has one; at most
    ``max_idle`` are idle. ``context_for`` returns the TLS context for an upstream's files.
    """

    def __init__(
        self, context_for: Callable[[TlsFiles], ssl.SSLContext], max_idle: int = MAX_IDLE
    ) -> None:
        self._context_for = context_for
        self._max_idle = max_idle
        self._idle: dict[tuple[Origin, int], list[tuple[float, UpstreamConnection]]] = {}
        self._waiting = 0  # the number of connections in ``_idle``
        # Time until which connections to the origin are not reused.
        self._distrusted: dict[Origin, float] = {}
        self._addresses: dict[tuple[str, int], tuple[float, list[Any]]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def acquire_idle(self, origin: Origin, owner: int = SHARED) -> UpstreamConnection | None:
        """Return the idle connection that was used last (most likely alive), or None."""
        waiting = self._idle.get((origin, owner))
        while waiting:
            since, connection = waiting.pop()
            self._waiting -= 1
            if not connection.is_reusable or connection.loop.time() - since >= IDLE_S:
                connection.close()
            # Bytes arrived that belong to no request. Reading them closes the connection.
            elif connection.has_arrived():
                # Close it in any case: TLS may not pass the bytes on.
                connection.loop.call_later(RETIRE_S, connection.close)
            else:
                return connection
        return None

    async def connect(self, origin: Origin, within_s: float) -> UpstreamConnection:
        """Open a connection. Raises ConnectTimeout, ConnectError, or ``ssl.SSLError``."""
        try:
            async with asyncio.timeout(within_s):
                return await self._open(origin)
        except ssl.SSLError:
            raise
        except ConfigError as exc:  # a certificate was replaced by an invalid one
            log.warning("no TLS to %s: %s", origin.host, exc)
            raise ssl.SSLError(str(exc)) from None
        except OSError as exc:  # a TimeoutError is an OSError too
            self._addresses.pop(_address(origin), None)
            if isinstance(exc, ConnectError):
                raise
            if origin.proxy is not None and not isinstance(exc, TimeoutError):
                raise ProxyUnreachable(str(exc)) from exc
            late = isinstance(exc, TimeoutError)
            raise (ConnectTimeout if late else ConnectError)(str(exc)) from exc

    def release(self, connection: UpstreamConnection, origin: Origin, owner: int = SHARED) -> None:
        """Store the connection for the next request, or close it if it cannot be reused.

        A proxy that forwards requests may close a connection after each response without announcing
        it, as tinyproxy does; the next request on it would get no response.
        """
        if (
            owner == NOT_REUSED
            or origin.is_forwarded
            or not connection.is_reusable
            or self._waiting >= self._max_idle
            or (self._distrusted and self.is_distrusted(origin, connection.loop.time()))
        ):
            connection.close()
            return
        key = origin, owner
        if key not in self._idle:
            self._idle[key] = []
        self._idle[key].append((connection.loop.time(), connection))
        self._waiting += 1
        if self._sweep is None:
            self._sweep = connection.loop.call_later(IDLE_S, self._close_expired)

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for key in list(self._idle):
            self._close_idle(key)

    def _close_idle(self, key: tuple[Origin, int]) -> None:
        for _, connection in self._idle.pop(key):
            self._waiting -= 1
            connection.close()

    def is_distrusted(self, origin: Origin, now: float) -> bool:
        """Return whether connections to the origin may not be reused at this time of the loop."""
        until = self._distrusted.get(origin, 0.0)
        if 0.0 < until <= now:
            del self._distrusted[origin]
        return until > now

    def _on_stray(self, origin: Origin, connection: UpstreamConnection, when: StrayTiming) -> None:
        """Count an arrival of stray bytes.

        Do not reuse connections to this origin for ``DISTRUST_S``. This is logged once in that
        time, because an origin may send stray bytes after each response.
        """
        STRAY_RESPONSES.labels(connection.upstream, when).inc()
        now = connection.loop.time()
        if not self.is_distrusted(origin, now):
            log.warning(
                "upstream %s sent bytes that no request had asked for (%s): the connection is "
                "closed, and connections to it are not reused for %.0f s",
                connection.upstream, when.replace("_", " "), DISTRUST_S,
            )  # fmt: skip
        self._distrusted[origin] = now + DISTRUST_S
        for key in [key for key in self._idle if key[0] == origin]:
            self._close_idle(key)

    async def _open(self, origin: Origin) -> UpstreamConnection:
        connection = UpstreamConnection(partial(self._on_stray, origin))
        if origin.proxy is None:
            transport = await self._open_tcp(origin, lambda: connection)
        else:
            transport = await self._open_proxy(origin, origin.proxy, connection)
        if origin.tls:
            secured = await self._start_tls(transport, connection, origin.files, origin.host)
            connection.connection_made(secured)
        return connection

    async def _start_tls(
        self, transport: Any, protocol: asyncio.Protocol, files: TlsFiles, host: str
    ) -> Any:
        """Start TLS on a transport; return the secured transport. Raises OSError."""
        context = self._context_for(files)
        loop = asyncio.get_running_loop()
        secured = await loop.start_tls(transport, protocol, context, server_hostname=host)
        if secured is None:
            raise ConnectionAbortedError("the connection was closed during the TLS handshake")
        return secured

    async def _open_proxy(
        self, origin: Origin, proxy: HttpProxy, connection: UpstreamConnection
    ) -> Any:
        """Connect to the proxy, and through it to an https upstream; return the transport.

        Raises ProxyRefused, ProxyUnreachable, ProxyUntrusted or OSError.
        """
        tunnel = None
        if not origin.is_forwarded:
            host = f"[{origin.host}]" if ":" in origin.host else origin.host
            tunnel = ProxyTunnel(f"{host}:{origin.port}", proxy.authorization)
        first = tunnel or connection
        tcp = transport = await self._open_tcp(
            origin, asyncio.Protocol if proxy.tls else lambda: first
        )
        try:
            if proxy.tls:
                transport = await self._start_proxy_tls(tcp, first, origin, proxy)
            if tunnel is not None:
                if transport is not tcp:
                    tunnel.connection_made(transport)
                await tunnel.opened
                transport.set_protocol(connection)
        except BaseException:
            tcp.abort()
            raise
        # The connection inspects the write buffer of the first transport that it gets, so this must
        # be the TCP transport.
        for layer in dict.fromkeys((tcp, transport)):
            connection.connection_made(layer)
        return transport

    async def _start_proxy_tls(
        self, tcp: Any, first: asyncio.Protocol, origin: Origin, proxy: HttpProxy
    ) -> Any:
        """Start TLS with the proxy. A client certificate is for the upstream, so none is shown."""
        try:
            return await self._start_tls(tcp, first, TlsFiles(ca=origin.files.ca), proxy.host)
        except ssl.SSLError as exc:
            raise ProxyUntrusted(str(exc)) from exc

    async def _open_tcp(self, origin: Origin, factory: Callable[[], asyncio.Protocol]) -> Any:
        """Open a TCP connection to the upstream, or to its proxy; return the transport."""
        loop = asyncio.get_running_loop()
        addresses = await self._resolve(_address(origin))
        if len(addresses) == 1 and addresses[0][0] == socket.AF_INET:
            # A single address needs no Happy Eyeballs (RFC 8305), which saves 120 µs.
            return (await loop.create_connection(factory, *addresses[0][4]))[0]
        sock = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=SECOND_ADDRESS_S, loop=loop
        )
        try:
            return (await loop.create_connection(factory, sock=sock))[0]
        except BaseException:
            sock.close()
            raise

    async def _resolve(self, key: tuple[str, int]) -> list[Any]:
        """Return the addresses of a host, without those that no URL may have (``url_hosts``)."""
        loop = asyncio.get_running_loop()
        known = self._addresses.get(key)
        if known is not None and loop.time() - known[0] < ADDRESSES_S:
            return known[1]
        resolved = await loop.getaddrinfo(*key, type=socket.SOCK_STREAM)
        found = [each for each in resolved if not _is_forbidden(each)]
        if not found:
            raise ConnectError(f"{key[0]!r} resolves to an address of this network link")
        self._addresses[key] = (loop.time(), found)
        return found

    def _close_expired(self) -> None:
        """Close the connections that have been idle for longer than ``IDLE_S``."""
        loop = asyncio.get_running_loop()
        self._sweep = None
        for key, waiting in list(self._idle.items()):
            fresh = []
            for since, connection in waiting:
                if loop.time() - since < IDLE_S and connection.is_reusable:
                    fresh.append((since, connection))
                else:
                    self._waiting -= 1
                    connection.close()
            if fresh:
                self._idle[key] = fresh
            else:
                del self._idle[key]
        if self._idle:
            self._sweep = loop.call_later(IDLE_S, self._close_expired)


def _is_forbidden(resolved: Any) -> bool:
    """Return whether no URL may have the address of this result of ``getaddrinfo``."""
    address = address_of(str(resolved[4][0]))
    return address is None or is_forbidden(address)


def _address(origin: Origin) -> tuple[str, int]:
    """Return host and port of the upstream, or of the proxy before it."""
    way = origin.proxy or origin
    return way.host, way.port
