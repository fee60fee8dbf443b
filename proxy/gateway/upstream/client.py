"""The HTTP client for upstreams: one connection pool per event loop, no redirects, no retries.

No other module sends the requests of clients to upstreams. ``connection.py`` implements the
connections.
"""

import asyncio
import dataclasses
import re
import ssl
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from yarl import URL

from proxy.gateway.credentials.credential import (
    NONE,
    STATIC,
    Credential,
    CredentialError,
    LiveCredential,
)
from proxy.gateway.http.errors import Header, UpstreamFailed
from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.http.request_headers import printable
from proxy.gateway.http.secret_redaction import Redactor, redact_headers
from proxy.gateway.request.attempts import AttemptRecord
from proxy.gateway.snapshot.endpoints import request_head
from proxy.gateway.snapshot.targets import Target, UpstreamServer
from proxy.models.setup.upstream_connection import tls_context
from translator.dialect import UpstreamError
from translator.errors import BadUpstream
from translator.upstream_errors.body_parser import seconds_in

from .connections import (
    OWNERS,
    SHARED,
    ConnectError,
    ConnectionPool,
    ConnectTimeout,
    EarlyResponse,
    InvalidHttpResponse,
    ProxyRefused,
    ProxyUnreachable,
    ProxyUntrusted,
    UpstreamConnection,
)

PROXY_TIMEOUT_STATUSES: Final = frozenset({408, 504, 524})
"""Timeout statuses of a proxy in front of the model: the model may have answered, and the upstream
may bill the request."""
PROXY_REFUSAL: Final = 407
"""The only status that a proxy that forwards requests uses and an upstream does not."""
SLICE_BYTES: Final = 2**20  # the maximum number of bytes decompressed at once
ERROR_BODY_BYTES: Final = 64 * 1024
RETRY_AFTER_S: Final = (1, 60)
REJECTED: Final = frozenset({401, 403})
EXPIRED: Final = re.compile(
    rb"expired|UnrecognizedClientException|InvalidClientTokenId|security token", re.IGNORECASE
)
"""A 403 with these words is about the credential; any other is about the permission. Amazon uses
403 for both, so a denied role is not retried."""
UNDELIVERED: Final = "undelivered"
"""The ``detail`` of a failure before the upstream received the request."""
CONNECTION_ERRORS: Final = (InvalidHttpResponse, OSError)
pools: Final[dict[asyncio.AbstractEventLoop, ConnectionPool]] = {}
EVENT_FIELDS: Final = frozenset({b":", b"d", b"e", b"i", b"r"})
"""The possible first bytes of an SSE stream. JSON never begins with one of them, so they identify
SSE even if the ``content-type`` is wrong."""
BUCKET_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "requests": ("requests",),
    "tokens": ("tokens", "input-tokens"),
}
"""Anthropic's bucket names for OpenAI's. OpenAI's ``tokens`` also become ``input-tokens``."""
OPENAI_HEADERS: Final = frozenset(
    f"x-ratelimit-{what}-{kind}"
    for what in ("limit", "remaining", "reset")
    for kind in BUCKET_NAMES
)
DIGITS: Final = re.compile(r"[0-9]{1,15}")
MOST_SECONDS: Final = 10 * 365 * 86400.0


def _fault(status: int, error_type: str, message: str, *, retry: bool | None) -> UpstreamError:
    return UpstreamError(status=status, error_type=error_type, message=message, should_retry=retry)


NO_PROXY: Final = _fault(502, "api_error", "cannot reach the proxy before the upstream", retry=True)
PROXY_REFUSED: Final = _fault(
    502, "api_error", "the proxy before the upstream refused the connection", retry=False
)
UNTRUSTED_PROXY: Final = _fault(
    502, "api_error", "no trusted TLS connection to the proxy before the upstream", retry=False
)
UNREACHABLE: Final = _fault(502, "api_error", "cannot reach the upstream", retry=True)
BAD_TLS: Final = _fault(502, "api_error", "no trusted TLS connection to the upstream", retry=False)
CONNECT_TIMEOUT: Final = _fault(
    504, "timeout_error", "the upstream did not accept a connection in time", retry=True
)
LOST: Final = _fault(502, "api_error", "the upstream closed the connection", retry=True)
NO_CREDENTIAL: Final = _fault(
    502, "api_error", "the gateway has no valid credential for the upstream", retry=True
)
GARBAGE: Final = _fault(502, "api_error", "the upstream does not answer in HTTP", retry=None)
DENIED: Final = _fault(
    500, "api_error", "the upstream denies the gateway's role access", retry=False
)


@dataclass(frozen=True, slots=True)
class ErrorMapping:
    """The error that clients get for an exception of the connection."""

    error: UpstreamError
    undelivered: bool = False  # the upstream certainly did not receive the request
    maybe_stale: bool = False  # a pooled connection may have been closed before the request
    timed_out: bool = False


# The first class that matches the exception is used.
ERROR_MAPPINGS: Final[tuple[tuple[type[BaseException], ErrorMapping], ...]] = (
    (ssl.SSLError, ErrorMapping(BAD_TLS)),
    (ConnectTimeout, ErrorMapping(CONNECT_TIMEOUT, undelivered=True, timed_out=True)),
    (ProxyRefused, ErrorMapping(PROXY_REFUSED, undelivered=True)),
    (ProxyUntrusted, ErrorMapping(UNTRUSTED_PROXY, undelivered=True)),
    (ProxyUnreachable, ErrorMapping(NO_PROXY, undelivered=True)),
    (ConnectError, ErrorMapping(UNREACHABLE, undelivered=True)),
    (OSError, ErrorMapping(LOST, maybe_stale=True)),
    (EarlyResponse, ErrorMapping(GARBAGE, undelivered=True)),
)


def map_exception(exc: BaseException) -> ErrorMapping:
    for kind, mapping in ERROR_MAPPINGS:
        if isinstance(exc, kind):
            return mapping
    return ErrorMapping(GARBAGE)


def pool(loop: asyncio.AbstractEventLoop) -> ConnectionPool:
    """Return the connection pool of this event loop. It is created on first use."""
    if loop not in pools:
        pools[loop] = ConnectionPool(tls_context)
    return pools[loop]


async def close_transport() -> None:
    """Close the idle upstream connections of this event loop."""
    made = pools.pop(asyncio.get_running_loop(), None)
    if made is not None:
        made.close()
        await asyncio.sleep(0)  # the event loop closes sockets in its next iteration


class UpstreamResponse:
    """An upstream's response whose headers are received. The body is read piece by piece.

    If the response repeats the ``credential`` of the request or a secret header, it is redacted.
    """

    def __init__(
        self,
        connection: UpstreamConnection,
        server: UpstreamServer,
        record: AttemptRecord,
        pool: ConnectionPool,
        owner: int = SHARED,
        *,
        credential: Credential = NONE,
    ) -> None:
        self.status = connection.status
        self.credential = credential
        secrets = b"\n".join(filter(None, (credential.secret, server.secret)))
        self.headers = redact_headers(connection.headers, secrets)
        self.record = record
        self.ended = False
        self.connection = connection
        self._origin = server.origin
        self._pool = pool
        self._owner = owner
        compressed = connection.headers.get("content-encoding")
        self._decompressor: Any = _decompressor(compressed) if compressed else None
        self._peeked = b""
        self._redactor = Redactor(secrets)

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def request_id(self) -> str:
        for name in ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid"):
            if name in self.headers:
                return printable(self.headers[name][:200])
        return ""

    async def read(self) -> bytes:
        """Return the next bytes of the body; empty at its end. Raises UpstreamFailed."""
        if self._peeked:
            peeked, self._peeked = self._peeked, b""
            return peeked
        redactor = self._redactor
        while True:
            try:
                piece: bytes = await (
                    self.connection.read()
                    if self._decompressor is None
                    else self._read_decompressed()
                )
            except zlib.error:
                raise UpstreamFailed(GARBAGE, detail="bad_encoding") from None
            except CONNECTION_ERRORS as exc:
                raise UpstreamFailed(map_exception(exc).error, detail="cut") from exc
            self.ended = not piece
            clean = redactor.feed(piece) if piece else redactor.end()
            if clean or not piece:
                return clean

    async def _read_decompressed(self) -> bytes:
        decompressor = self._decompressor
        while True:
            # The data after the end is an error, and each further call would copy it.
            if decompressor.unused_data:
                raise zlib.error("there are bytes after the end of a compressed response")
            compressed = decompressor.unconsumed_tail or await self.connection.read()
            data: bytes = decompressor.decompress(compressed, SLICE_BYTES) if compressed else b""
            if data or not compressed:
                return data

    async def kind(self) -> str:
        """Return the kind of body: ``events``, ``json``, or a description of another kind."""
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
        """Return the next bytes of the body. The next ``read`` returns them again."""
        self._peeked = await self.read()
        return self._peeked

    async def read_all(self, limit: int) -> bytes | None:
        """Return the whole body; None if it is larger than ``limit`` bytes."""
        pieces = []
        size = 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                return None
        return b"".join(pieces)

    async def read_error_body(self, within_s: float = 2) -> bytes:
        """Return the start of an error body: all bytes until its end, a failure, or the timeout."""
        seen = bytearray()
        try:
            async with asyncio.timeout(within_s):
                while len(seen) < ERROR_BODY_BYTES and (piece := await self.read()):
                    seen += piece
        except (TimeoutError, UpstreamFailed):
            pass
        return bytes(seen[:ERROR_BODY_BYTES])

    async def peek_error_body(self) -> bytes:
        """Return the start of an error body. The next ``read`` returns these bytes again."""
        self._peeked = await self.read_error_body()
        return self._peeked

    def close(self) -> None:
        """Return the connection to the pool if the body was read to its end, else close it."""
        self._pool.release(self.connection, self._origin, self._owner)


def _decompressor(encoding: str) -> Any:
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
    server: UpstreamServer,
    url: URL,
    body: bytes,
    headers: Mapping[str, str],
    record: AttemptRecord,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    key_id: int = SHARED,
) -> UpstreamResponse:
    """Send one request to an upstream and wait for the response headers.

    ``key_id`` is the id of the client's gateway key, for upstreams whose ``connection_reuse`` is
    ``key``. ``loop`` is the running event loop, if the caller has it: getting it is a system call.
    Raises UpstreamFailed. This function has no timeout for the response; the caller sets a
    deadline.
    """
    live = server.credential
    try:
        credential = live.current or await live.get()
    except CredentialError:
        raise UpstreamFailed(NO_CREDENTIAL, detail="no_credential") from None
    head = server.head
    if headers or url is not server.url or credential is not server.fixed:
        own = credential.headers_for(url, body)
        head = request_head(url, {**server.headers, **headers, **own}, server.origin.proxy)
    connection: UpstreamConnection | None = None
    owner = OWNERS.get(server.connection_reuse, key_id)
    connections = pool(loop or asyncio.get_running_loop())
    try:
        connection = connections.acquire_idle(server.origin, owner)
        record.reused = connection is not None
        if connection is None:
            connection = await connections.connect(server.origin, server.timeouts.connect_s)
        connection.upstream, record.sent = server.name, True
        await connection.send_request(b"%b%d\r\n\r\n" % (head, len(body)), body)
        if connection.status == PROXY_REFUSAL and server.origin.is_forwarded:
            raise ProxyRefused(f"status {PROXY_REFUSAL}")  # noqa: TRY301 - it is mapped below
        record.status = connection.status
        record.refused = (
            connection.status != 200 and connection.status not in PROXY_TIMEOUT_STATUSES
        )
        return UpstreamResponse(
            connection, server, record, connections, owner, credential=credential
        )
    except CONNECTION_ERRORS as exc:
        if connection is not None:
            connection.close()
        mapping = map_exception(exc)
        record.error = type(exc).__name__
        is_unread = connection is not None and connection.is_request_unread
        undelivered = mapping.undelivered or (mapping.maybe_stale and is_unread)
        record.sent = record.sent and not undelivered
        raise UpstreamFailed(
            mapping.error,
            outcome="upstream_timeout" if mapping.timed_out else "upstream_error",
            detail=UNDELIVERED if undelivered else "no_answer",
        ) from exc
    except BaseException:  # the request was cancelled, or the content encoding is unknown
        if connection is not None:
            connection.close()
        raise


def retry_after(headers: Mapping[str, str]) -> int | None:
    """Return ``retry-after`` in whole seconds, within RETRY_AFTER_S; None if absent or invalid."""
    text = headers.get("retry-after-ms", "").strip()
    seconds = int(text) / 1000 if re.fullmatch(r"\d{1,9}", text) else None
    text = headers.get("retry-after", "").strip()
    if seconds is None and re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text):
        seconds = float(text)
    if seconds is None:
        return None
    shortest, longest = RETRY_AFTER_S
    return max(shortest, min(longest, int(seconds + 0.999)))


def bad_gateway_error(message: str) -> UpstreamError:
    return UpstreamError(status=502, error_type="api_error", message=message)


def upstream_error(target: Target, call: UpstreamResponse, raw: bytes) -> UpstreamError:
    """Map the upstream's error response to Anthropic's error (docs/mapping.md)."""
    try:
        body = decode_json(raw)
    except BadUpstream:
        body = raw.decode("utf-8", "replace")
    if call.status == 403 and target.server.credential.kind != STATIC:
        return DENIED  # the text names the gateway's own account and role, not the client's
    if call.status < 400:  # 204, 206 and redirects, which are not followed
        return bad_gateway_error(f"upstream answered with status {call.status}")
    error = target.server.dialect.map_error(call.status, body)
    seconds = retry_after(call.headers)
    if seconds is not None:  # the ``retry-after`` header has priority over the body
        error = dataclasses.replace(error, retry_after_s=seconds)
    return error


def is_expired(status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a response says that the credential has expired. Each 401 counts."""
    error_type = headers.get("x-amzn-errortype", "").encode()
    return status == 401 or bool(EXPIRED.search(error_type) or EXPIRED.search(body))


async def replace_expired(credential: LiveCredential, call: UpstreamResponse) -> bool:
    """Replace the credential if the response says that it expired.

    Return whether the request can be sent again. The response is closed if an exception ends this.
    """
    if call.status not in REJECTED:
        return False
    try:
        if not is_expired(call.status, call.headers, await call.peek_error_body()):
            return False
        return await credential.replace(call.credential) is not None
    except BaseException:
        call.close()
        raise


def map_rate_limit_headers(ours: list[Header], upstream: Mapping[str, str]) -> list[Header]:
    """Return the gateway's response headers and the upstream's converted rate limit headers.

    OpenAI gives the time until a bucket is full as a duration, Anthropic as a timestamp
    (docs/mapping.md). The gateway's own limits take precedence over the upstream's.
    """
    if OPENAI_HEADERS.isdisjoint(upstream):  # most servers send none; this saves 35 calls
        return ours
    names = {name for name, _ in ours}
    converted: list[Header] = []
    for kind, anthropic_kinds in BUCKET_NAMES.items():
        texts = {}
        for what in ("limit", "remaining"):
            text = upstream.get(f"x-ratelimit-{what}-{kind}", "").strip()
            texts[what] = text if DIGITS.fullmatch(text) else ""
        seconds = seconds_in(upstream.get(f"x-ratelimit-reset-{kind}", ""))
        if seconds is not None and seconds <= MOST_SECONDS:
            full_at = datetime.fromtimestamp(time.time() + seconds, UTC)
            texts["reset"] = full_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        converted += [
            (f"anthropic-ratelimit-{name}-{what}".encode(), text.encode())
            for name in anthropic_kinds
            for what, text in texts.items()
            if text
        ]
    return ours + [header for header in converted if header[0] not in names]
