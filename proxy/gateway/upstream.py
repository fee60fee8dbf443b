"""Calls upstreams: one connection pool, our own deadlines, no redirects, no blind retries.

The only file of the hot path that calls out, over the connections of ``wire.py``.
"""

import asyncio
import os
import re
import ssl
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import certifi
from yarl import URL

from translator.dialect import UpstreamError

from .connection_pool import OWNERS, SHARED, Pool
from .head import printable
from .masking import Redactor, masked_headers
from .refusals import UpstreamFailed
from .targets import Server
from .wire import ConnectTimeout, Early, Garbage, Unreachable, Wire, head_of

STALE_WITHIN_S: Final = 1.0
"""A pooled connection that turns out dead does so within a round trip; later is an answer lost."""
GAVE_UP: Final = frozenset({408, 504, 524})
"""Statuses of a proxy that waited in vain: the model behind it may have answered and be billed."""
SLICE_BYTES: Final = 2**20  # how much of a compressed body is inflated at once
ERROR_BODY_BYTES: Final = 64 * 1024
RETRY_AFTER_S: Final = (1, 60)


def _fault(status: int, error_type: str, message: str, *, retry: bool | None) -> UpstreamError:
    return UpstreamError(status=status, error_type=error_type, message=message, should_retry=retry)


UNREACHABLE: Final = _fault(502, "api_error", "cannot reach the upstream", retry=True)
BAD_TLS: Final = _fault(502, "api_error", "no trusted TLS connection to the upstream", retry=False)
CONNECT_TIMEOUT: Final = _fault(
    504, "timeout_error", "the upstream did not accept a connection in time", retry=True
)
LOST: Final = _fault(502, "api_error", "the upstream closed the connection", retry=True)
GARBAGE: Final = _fault(502, "api_error", "the upstream does not answer in HTTP", retry=None)


@dataclass(frozen=True, slots=True)
class Fault:
    """What an exception of the client library means."""

    error: UpstreamError
    undelivered: bool = False  # the upstream provably never saw the request
    maybe_stale: bool = False  # on a reused connection: its other end had hung up before
    timed_out: bool = False


# In order: the first class that fits.
FAULTS: Final[tuple[tuple[type[BaseException], Fault], ...]] = (
    (ssl.SSLError, Fault(BAD_TLS)),
    (ConnectTimeout, Fault(CONNECT_TIMEOUT, undelivered=True, timed_out=True)),
    (Unreachable, Fault(UNREACHABLE, undelivered=True)),
    (OSError, Fault(LOST, maybe_stale=True)),
    (Early, Fault(GARBAGE, undelivered=True)),
)
CAUGHT: Final = (Garbage, OSError)


def fault_of(exc: BaseException) -> Fault:
    for kind, fault in FAULTS:
        if isinstance(exc, kind):
            return fault
    return Fault(GARBAGE)


@dataclass(slots=True)
class Dial:
    """One attempt to reach a server: what the ledger keeps of it."""

    upstream: str
    model: str
    at: float  # on the event loop's clock
    reused: bool = False  # it went out on a connection that had served before
    status: int | None = None
    error: str = ""
    sent: bool = False  # the upstream may have the request
    refused: bool = False  # the upstream's own word that it generated nothing: an error answer
    charge: Mapping[str, Any] | None = None
    """What a hard budget was charged for it after it failed: ``usage`` and ``cost_nanousd``."""

    @property
    def may_be_billed(self) -> bool:
        return self.sent and not self.refused

    def as_record(self, now: float) -> dict[str, Any]:
        record = {
            "upstream": self.upstream,
            "model": self.model,
            "status": self.status,
            "error": self.error,
            "ms": int((now - self.at) * 10_000 + 0.5) / 10,  # ``round`` takes 1 µs
        }
        return record if self.charge is None else {**record, **self.charge}


_pools: Final[dict[asyncio.AbstractEventLoop, Pool]] = {}


def pool(loop: asyncio.AbstractEventLoop) -> Pool:
    """The connections of this event loop, made on first use; there until ``close_transport``."""
    if loop not in _pools:
        _pools[loop] = Pool(_trusted)
    return _pools[loop]


def _trusted() -> ssl.SSLContext:
    """Whom to trust: the authorities that the environment names, else Mozilla's list."""
    if file := os.environ.get("SSL_CERT_FILE"):
        return ssl.create_default_context(cafile=file)
    if folder := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=certifi.where())


async def close_transport() -> None:
    """Close this event loop's connections that wait."""
    made = _pools.pop(asyncio.get_running_loop(), None)
    if made is not None:
        made.close()
        await asyncio.sleep(0)  # sockets are closed in the loop's next turn


EVENT_FIELDS: Final = frozenset({b":", b"d", b"e", b"i", b"r"})
"""What a stream of events begins with, and JSON never, by whatever type a proxy calls it."""


class Call:
    """An upstream's answer whose head is here; its body is read piece by piece.

    Nothing of it holds the credential of ``server``, should the upstream repeat it.
    """

    def __init__(
        self, wire: Wire, server: Server, dial: Dial, pool: Pool, owner: int = SHARED
    ) -> None:
        self.status = wire.status
        self.headers = masked_headers(wire.headers, server.secret)
        self.dial = dial
        self.ended = False
        self.wire = wire
        self._origin = server.origin
        self._pool = pool
        self._owner = owner
        packed = wire.headers.get("content-encoding")
        self._unpacker: Any = _unpacker(packed) if packed else None
        self._peeked = b""
        self._redactor = Redactor(server.secret)

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def request_id(self) -> str:
        for name in ("x-request-id", "request-id", "apim-request-id"):
            if name in self.headers:
                return printable(self.headers[name][:200])
        return ""

    async def read(self, take: Callable[[bytes], bool] | None = None) -> bytes:
        """The next bytes as they came; empty at the end. Raises UpstreamFailed.

        ``take`` may deal with some of them while this waits: see ``Wire.read``.
        """
        if self._peeked:
            peeked, self._peeked = self._peeked, b""
            return peeked
        redactor = self._redactor
        while True:
            try:
                piece: bytes = await (
                    self.wire.read(None if redactor.held else take)
                    if self._unpacker is None
                    else self._unpacked()
                )
            except zlib.error:
                raise UpstreamFailed(GARBAGE, detail="bad_encoding") from None
            except CAUGHT as exc:
                raise UpstreamFailed(fault_of(exc).error, detail="cut") from exc
            self.ended = not piece
            clean = redactor.feed(piece) if piece else redactor.end()
            if clean or not piece:
                return clean

    async def _unpacked(self) -> bytes:
        unpacker = self._unpacker
        while True:
            if unpacker.unused_data:  # behind the end it keeps all that comes, and copies it again
                raise zlib.error("there is more behind the end of a packed answer")
            packed = unpacker.unconsumed_tail or await self.wire.read()
            plain: bytes = unpacker.decompress(packed, SLICE_BYTES) if packed else b""
            if plain or not packed:
                return plain

    async def kind(self) -> str:
        """Return ``events`` or ``json``, else what it is; without a type the body decides."""
        kind = self.content_type
        if kind == "text/event-stream":
            return "events"
        first = (await self.peek()).lstrip()[:1]
        if kind == "application/json":
            return "events" if first in EVENT_FIELDS else "json"
        if kind == "text/html" or first == b"<":
            return "a web page"
        return "json" if first in {b"{", b"["} else "events"

    async def peek(self) -> bytes:
        """The next bytes, left to be read again."""
        self._peeked = await self.read()
        return self._peeked

    async def whole(self, limit: int) -> bytes | None:
        """All of the body; None when it is larger than ``limit``."""
        pieces = []
        size = 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                return None
        return b"".join(pieces)

    async def beginning(self, within_s: float = 2) -> bytes:
        """The first bytes of an error's body; whatever came until it ended, broke or was late."""
        seen = bytearray()
        try:
            async with asyncio.timeout(within_s):
                while len(seen) < ERROR_BODY_BYTES and (piece := await self.read()):
                    seen += piece
        except (TimeoutError, UpstreamFailed):
            pass
        return bytes(seen[:ERROR_BODY_BYTES])

    async def preview(self) -> bytes:
        """The beginning of an error's body, left to be read again."""
        self._peeked = await self.beginning()
        return self._peeked

    def close(self) -> None:
        """Give the connection back if the body was read to its end, else close it at once."""
        self._pool.give_back(self.wire, self._origin, self._owner)


def _unpacker(encoding: str) -> Any:
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip":
            return zlib.decompressobj(wbits=31)
        case "deflate":
            return zlib.decompressobj()
        case _:
            raise UpstreamFailed(GARBAGE, detail="bad_encoding")


async def post(
    server: Server,
    url: URL,
    body: bytes,
    headers: Mapping[str, str],
    dial: Dial,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    key_id: int = SHARED,
) -> Call:
    """Send one request and wait for the head of its answer.

    ``key_id`` is the gateway key that sends it, for upstreams whose ``connection_reuse`` is
    ``key``. ``loop``: the running one, where it is known: to ask for it is a system call. Raises
    UpstreamFailed. The caller minds the time: see ``Watch``.
    """
    head = server.head
    if headers or url is not server.url:
        head = head_of(url, {**server.headers, **headers})
    wire: Wire | None = None
    owner = OWNERS.get(server.connection_reuse, key_id)
    connections = pool(loop or asyncio.get_running_loop())
    try:
        wire = connections.idle(server.origin, owner)
        dial.reused = wire is not None
        if wire is None:
            wire = await connections.connect(server.origin, server.timeouts.connect_s)
        wire.upstream, dial.sent = server.name, True
        await wire.ask(b"%b%d\r\n\r\n" % (head, len(body)), body)
        dial.status = wire.status
        dial.refused = wire.status != 200 and wire.status not in GAVE_UP
        return Call(wire, server, dial, connections, owner)
    except CAUGHT as exc:
        if wire is not None:
            wire.close()
        fault = fault_of(exc)
        dial.error = type(exc).__name__
        waited = asyncio.get_running_loop().time() - dial.at
        stale = fault.maybe_stale and dial.reused and waited < STALE_WITHIN_S
        undelivered = fault.undelivered or stale
        dial.sent = dial.sent and not undelivered
        raise UpstreamFailed(
            fault.error,
            outcome="upstream_timeout" if fault.timed_out else "upstream_error",
            detail=UNDELIVERED if undelivered else "no_answer",
        ) from exc
    except BaseException:  # whoever asked has gone, or the body is packed in an unknown way
        if wire is not None:
            wire.close()
        raise


UNDELIVERED: Final = "undelivered"


def retry_after(headers: Mapping[str, str]) -> int | None:
    """Upstream's ``retry-after`` in whole seconds, clamped; None when absent or nonsense."""
    text = headers.get("retry-after-ms", "").strip()
    seconds = int(text) / 1000 if re.fullmatch(r"\d{1,9}", text) else None
    text = headers.get("retry-after", "").strip()
    if seconds is None and re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text):
        seconds = float(text)
    if seconds is None:
        return None
    shortest, longest = RETRY_AFTER_S
    return max(shortest, min(longest, int(seconds + 0.999)))
