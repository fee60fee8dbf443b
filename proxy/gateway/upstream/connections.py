"""Connections to upstreams: a minimal HTTP/1.1 client, and the pool of idle connections.

llhttp (the HTTP parser of Node.js) parses the responses. The body bytes of one socket read are
returned in one piece, whatever the number of HTTP chunks. This takes 60 µs for 200 deltas, where
aiohttp takes 500 µs (it passes each chunk through 16 calls). There are no redirects, cookies or
retries.

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
import re
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, Literal

import aiohappyeyeballs
import httptools

from proxy.gateway.snapshot.endpoints import Origin
from proxy.metrics.definitions import STRAY_RESPONSES
from proxy.models.setup.upstream_connection import HttpProxy, TlsFiles
from proxy.secrets import ConfigError
from proxy.url_hosts import address_of, is_forbidden

log = logging.getLogger("proxy.gateway")

MAX_HEAD_BYTES: Final = 24 * 1024  # Node.js accepts 16 KB, nginx 4 or 8
MAX_HEAD_LINES: Final = 128
LONG_NAMES: Final = 1024  # if the names of all headers are longer (in bytes), they are not cached
# above this number of unread bytes, reading from the socket is paused
HIGH_WATER_BYTES: Final = 128 * 1024
LARGE_READ_BYTES: Final = 64 * 1024

BYTES_ACKNOWLEDGED: Final = struct.Struct("120xQ")
"""``tcpi_bytes_acked`` in Linux's ``struct tcp_info``."""
TCP_INFO_BYTES: Final = BYTES_ACKNOWLEDGED.size

PROXY_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: |\r|$)")

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

StrayTiming = Literal["idle", "after_response", "before_request_sent"]
"""When stray bytes (bytes that belong to no request) arrived."""


class ConnectError(OSError):
    """No connection was established, so the upstream certainly did not receive the request."""


class ProxyUnreachable(ConnectError):
    """No connection to the forward proxy was established, or it did not answer in HTTP."""


class ProxyUntrusted(ConnectError):
    """The forward proxy has no certificate of a trusted CA."""


class ProxyRefused(ConnectError):
    """The forward proxy refused to pass on the gateway's requests."""


class ConnectTimeout(OSError):
    """No connection was established within the timeout."""


class ConnectionLost(OSError):
    """The connection was closed before the response was complete."""


class InvalidHttpResponse(Exception):
    """The bytes received from the upstream are not valid HTTP."""


class EarlyResponse(InvalidHttpResponse):
    """A response began on a reused connection before the whole request had been sent.

    It cannot be the response to this request. The rest of the request is discarded, so the upstream
    never receives the whole request.
    """


class LargeReads:
    """The large reads of one event loop that wait for their turn, in their order.

    An iteration of the event loop handles one large read, whatever their number. Translating one
    takes some 10 ms, a stream that a client does not read ends many of them in a row, and the event
    loop accepts one connection in an iteration (libuv, since 1.45): with fifty such streams, a new
    connection waited for 10 s. Streams of models have reads of some 100 bytes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Return when this read is the next one, in a later iteration of the event loop."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(waiter)
        if len(self._waiting) == 1:
            self.loop.call_soon(self._next)
        await waiter

    def _next(self) -> None:
        """End the wait of the first read that was not cancelled."""
        while self._waiting:
            waiter = self._waiting[0]
            if waiter.done():
                self._waiting.popleft()
                continue
            waiter.set_result(None)  # it stays first, so that no other call schedules this method
            self.loop.call_soon(self._next)
            return


_current: LargeReads | None = None


def large_reads(loop: asyncio.AbstractEventLoop) -> LargeReads:
    """Return the turns of this event loop."""
    global _current  # noqa: PLW0603 - a process has one event loop; tests have several
    if _current is None or _current.loop is not loop:
        _current = LargeReads(loop)
    return _current


class UpstreamConnection(asyncio.Protocol):
    """One connection to an upstream. For each request: ``send_request``, then ``read`` to the end.

    When the future of ``send_request`` is done, ``status`` and ``headers`` are set (names in lower
    case; of repeated headers the first). If stray bytes arrive, the connection closes itself and
    calls ``on_stray``.
    """

    def __init__(
        self, on_stray: "Callable[[UpstreamConnection, StrayTiming], None] | None" = None
    ) -> None:
        # It is stored, because getting the loop is a system call in Python 3.11.
        self.loop = asyncio.get_running_loop()
        self.upstream = ""  # name of the upstream that used the connection last
        self._on_stray = on_stray
        self._transport: Any = None
        self._tcp: Any = None  # the TCP transport below TLS; without TLS the same as ``_transport``
        self._poll: Callable[[int], list[Any]] | None = None
        self._reused = False
        # What the upstream's TCP had acknowledged before the request; None if that is unknown.
        self._acknowledged: int | None = None
        # Whether the upstream's program provably read no byte of the request.
        self.is_request_unread = False
        self._early = False  # whether the response began before the whole request was sent
        self._parser: Any = None  # parses all responses of the connection
        self.status = 0
        self.headers: dict[str, str] = {}
        self._head_bytes = 0  # bytes received before the response head was complete
        self._head: list[bytes] = []  # header names and values alternate
        self._head_complete = False
        self._body_complete = True  # whether the whole response was received
        self._keep_alive = False  # whether the upstream accepts another request
        self._fault: Exception | None = None
        self._pieces: list[bytes] = []
        # The parser calls this for each HTTP chunk: 10 µs for 200 calls, with a method 80 µs.
        self.on_body = self._pieces.append
        self._unread = 0  # received bytes that are not read yet, including chunk headers
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None

    # The following methods are called by the HTTP client.

    def send_request(self, request: bytes, body: bytes) -> asyncio.Future[None]:
        """Send a request. The returned future is done when the response head is received.

        The connection must be new or ``is_reusable``. The future raises ConnectionLost or
        InvalidHttpResponse.
        """
        self._head_bytes = self._unread = 0
        self._reused = self._head_complete  # whether there was an earlier response
        self._head_complete = self._body_complete = self._keep_alive = self._early = False
        self._acknowledged = _acknowledged_bytes(self._tcp) if self._reused else None
        self._transport.writelines((request, body))
        self._waiter = waiter = self.loop.create_future()
        if self._fault is not None:  # the connection was lost before the request
            self._wake_reader()
        return waiter

    async def read(self) -> bytes:
        """Return the unread bytes of the body, at most LARGE_READ_BYTES; empty at the body's end.

        Waits if there are none, and for its turn if there are more. Raises ConnectionLost or
        InvalidHttpResponse.
        """
        while not self._pieces:
            if self._body_complete:
                return b""
            if self._fault is not None:
                raise _fresh_exception(self._fault)
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._unread > LARGE_READ_BYTES:
            await large_reads(self.loop).turn()
        piece = b"".join(self._pieces)  # this makes no copy if there is only one piece
        self._pieces.clear()
        self._unread = 0
        if len(piece) > LARGE_READ_BYTES:
            self._pieces.append(piece[LARGE_READ_BYTES:])
            self._unread = len(piece) - LARGE_READ_BYTES
            piece = piece[:LARGE_READ_BYTES]
        if self._paused and self._unread <= HIGH_WATER_BYTES:
            self._paused = False
            self._transport.resume_reading()
        return piece

    @property
    def response_complete(self) -> bool:
        """Whether the whole body was read, even if ``read`` has not returned empty bytes yet."""
        return self._body_complete and not self._pieces

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can send another request."""
        return (
            self._keep_alive  # true only if the response is complete and the connection is not lost
            and not self._pieces
            and not self._transport.is_closing()
            and not self._unsent
        )

    def has_arrived(self) -> bool:
        """Return whether the socket has unread bytes or was closed by the upstream.

        Call this only for a reusable connection. The check takes 1 µs; waiting for one iteration of
        the event loop would take 50.
        """
        if self._poll is None:
            poll = select.poll()
            poll.register(self._tcp.get_extra_info("socket").fileno(), select.POLLIN)
            self._poll = poll.poll
        return bool(self._poll(0))

    def close(self) -> None:
        """Close the connection at once, without sending buffered bytes."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def _unsent(self) -> int:
        """The number of request bytes that are still buffered, including those in the TLS layer."""
        unsent: int = self._tcp.get_write_buffer_size()
        if self._transport is not self._tcp:
            unsent += self._transport.get_write_buffer_size()
        return unsent

    def _wake_reader(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if self._fault is not None and not self._head_complete:
            waiter.set_exception(_fresh_exception(self._fault))
        else:
            waiter.set_result(None)  # ``read`` then checks the state

    # The following methods are called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport.

        The event loop calls this again when TLS starts on the TCP connection.
        """
        self._transport = transport
        self._tcp = self._tcp or transport
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, raw: bytes) -> None:
        if self._body_complete:
            self._stray("idle")
            return
        if not self._head_complete and self._unsent:
            # The response begins before the whole request was sent. On a new connection the
            # upstream rejects the request early, and the connection is not reused.
            self._early = True
            if self._reused:  # the response belongs to no request
                self._stray("before_request_sent")
                return
        try:
            self._parser.feed_data(raw)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if self._body_complete:
                self._stray("after_response")
            else:
                self._end(InvalidHttpResponse(type(exc).__name__))
            return
        if not self._head_complete:
            self._head_bytes += len(raw)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._end(InvalidHttpResponse("the head is too large"))
            return
        self._unread += len(raw)
        if self._unread > HIGH_WATER_BYTES and not self._paused and not self._body_complete:
            self._paused = True
            self._transport.pause_reading()
        # This is ``_wake_reader``, inlined for speed
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser = None  # breaks a reference cycle
        # After a reset, the acknowledgement of a request that was read may be missing.
        was_reset = isinstance(exc, ConnectionResetError)
        if self._acknowledged is not None and not self._head_bytes and not was_reset:
            self.is_request_unread = _acknowledged_bytes(self._tcp) == self._acknowledged
        if self._body_complete:
            self._keep_alive = False
            self._fault = ConnectionLost(str(exc or "closed"))
        elif (
            exc is None
            and self._head_complete
            and "content-length" not in self.headers
            and "transfer-encoding" not in self.headers
        ):  # the body ends with the connection
            self._body_complete = True
            self._wake_reader()
        else:
            self._end(ConnectionLost(str(exc or "closed")))

    def _end(self, fault: Exception) -> None:
        self._keep_alive = False
        if not self._body_complete and self._fault is None:
            self._fault = fault
        self._wake_reader()
        self.close()

    def _stray(self, when: StrayTiming) -> None:
        """Close the connection, because responses can no longer be matched to requests."""
        self._end(EarlyResponse("a response before the request was wholly sent"))
        if self._on_stray is not None:
            self._on_stray(self, when)

    # The following methods are called by the parser.

    def on_message_begin(self) -> None:
        if self._body_complete:
            raise InvalidHttpResponse("a second response to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_complete:  # after the head, this is a trailer, which is ignored
            self._head += (name, value)

    def on_headers_complete(self) -> None:
        head, self._head = self._head, []
        self.status = self._parser.get_status_code()
        if self.status >= 200:  # after 100 or 103, the final response follows
            self.headers = _headers_in(head)
            self._head_complete = True

    def on_message_complete(self) -> None:
        if self._head_complete:
            self._body_complete = True
            self._keep_alive = self._parser.should_keep_alive() and not self._early


class ProxyTunnel(asyncio.Protocol):
    """Asks a forward proxy for a tunnel (CONNECT, RFC 9110, 9.3.6) on a new connection.

    ``opened`` is done when the proxy has agreed; then another protocol takes over the transport.
    It raises ConnectError, ProxyRefused or ProxyUnreachable.
    """

    def __init__(self, authority: str, authorization: str) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lines = [f"CONNECT {authority} HTTP/1.1", f"host: {authority}"]
        if authorization:
            lines.append(f"proxy-authorization: {authorization}")
        self._request = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, raw: bytes) -> None:
        self._head += raw
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if self.opened.done() or not (end or len(head) > MAX_HEAD_BYTES):
            return
        match = PROXY_STATUS.match(head)
        if match is None or not end:
            self.opened.set_exception(ProxyUnreachable("the proxy does not answer in HTTP"))
        elif match[1][:1] == b"5":  # the proxy cannot reach the upstream
            self.opened.set_exception(ConnectError(f"status {match[1].decode()} of the proxy"))
        elif match[1][:1] != b"2":
            self.opened.set_exception(ProxyRefused(f"status {match[1].decode()}"))
        elif rest:  # the upstream has not received anything yet, so these bytes are not its own
            self.opened.set_exception(ProxyUnreachable("the proxy sent bytes before the upstream"))
        else:
            self.opened.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(ProxyUnreachable("the proxy closed the connection"))


def _acknowledged_bytes(transport: Any) -> int | None:
    """Return how many bytes the other side's TCP has acknowledged; None if the system hides it.

    A side that closes its connection in order acknowledges with that all bytes that it received. If
    it has not acknowledged a request by then, no program read it. This takes 2 µs.
    """
    connected = transport.get_extra_info("socket")
    descriptor = -1 if connected is None else connected.fileno()
    if descriptor < 0 or not hasattr(socket, "TCP_INFO"):
        return None
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, descriptor)
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except OSError:
        return None
    finally:
        tcp.detach()
    return BYTES_ACKNOWLEDGED.unpack_from(info)[0] if len(info) == TCP_INFO_BYTES else None


def _headers_in(head: list[bytes]) -> dict[str, str]:
    """Return the header values by lower-case name. Of repeated headers the first is used.

    Raises InvalidHttpResponse if the head is too large. All names are joined by line feeds and
    decoded at once, and so are all values: this takes 9 calls, instead of 7 for each line. It is
    safe because llhttp rejects line feeds in names and values.
    """
    names, values = b"\n".join(head[::2]), b"\n".join(head[1::2])
    if len(head) > 2 * MAX_HEAD_LINES or len(names) + len(values) > MAX_HEAD_BYTES:
        raise InvalidHttpResponse("the head is too large")
    if not head:
        return {}
    decoded = (cached_names if len(names) < LONG_NAMES else parse_names)(names)
    return dict(zip(decoded, reversed(values.decode("latin-1").split("\n")), strict=True))


def parse_names(names: bytes) -> list[str]:
    """Return the header names in lower case and in reversed order.

    The caller builds a dict, in which the first of equal names must win, so it comes last.
    """
    return names.decode("latin-1").lower().split("\n")[::-1]


# servers send the same header names in each response
cached_names: Final = lru_cache(maxsize=64)(parse_names)


def _fresh_exception(fault: Exception) -> Exception:
    """Return a copy of the exception to raise.

    A raised exception references stack frames, and these reference the connection.
    """
    return type(fault)(*fault.args)


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
                # A client certificate is for the upstream, so none is shown.
                files = TlsFiles(ca=origin.files.ca)
                try:
                    transport = await self._start_tls(tcp, first, files, proxy.host)
                except ssl.SSLError as exc:
                    raise ProxyUntrusted(str(exc)) from exc
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
        found = [
            each
            for each in resolved
            if (address := address_of(str(each[4][0]))) is not None and not is_forbidden(address)
        ]
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


def _address(origin: Origin) -> tuple[str, int]:
    """Return host and port of the upstream, or of the proxy before it."""
    way = origin.proxy or origin
    return way.host, way.port
