"""HTTP/1.1 to upstreams, as far as one needs it who sends a body and reads a stream.

llhttp, node's parser, reads the answer. What arrives in one read is handed on in one piece, however
many HTTP chunks it came in: of an answer of 200 deltas that costs 60 µs, where aiohttp's client
took 500 (it passes each chunk on by itself, through 16 calls). A request costs a third as well.
No redirects, no cookies, no proxies, no retries: none of them is wanted on this path.
"""

import asyncio
import select
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Self

import httptools
from yarl import URL

MOST_HEAD_BYTES: Final = 24 * 1024  # node takes 16 KB in all, nginx 4 or 8
MOST_HEAD_LINES: Final = 128
LONG_NAMES: Final = 1024  # bytes of all names of a head: longer ones are not remembered
HIGH_WATER_BYTES: Final = 256 * 1024  # unread: beyond it the upstream has to wait

When = Literal["idle", "after_response", "before_request_sent"]
"""When bytes arrived that no request had asked for."""


class Unreachable(OSError):
    """No connection came to be: the upstream provably never saw the request."""


class ConnectTimeout(OSError):
    """The same, in the time that there was."""


class Lost(OSError):
    """The connection ended before the answer did."""


class Garbage(Exception):
    """What came is not HTTP."""


class Early(Garbage):
    """A response began on a reused connection before the request was wholly sent.

    It cannot be the response to this request, and the rest of the request is discarded: the
    upstream never has the whole of it.
    """


class Origin(NamedTuple):
    tls: bool
    host: str
    port: int

    @classmethod
    def of(cls, url: URL) -> Self:
        return cls(url.scheme == "https", url.raw_host or "", url.port or 80)


class Wire(asyncio.Protocol):
    """One connection: a request goes out by ``ask``, its answer is ``read`` to the end, and again.

    ``status`` and ``headers`` (names in lower case, the first of several) are there after ``ask``.
    ``on_stray`` is called after bytes that no request asked for have closed the connection.
    """

    def __init__(self, on_stray: "Callable[[Wire, When], None] | None" = None) -> None:
        self.loop = asyncio.get_running_loop()  # which is a system call in Python 3.11
        self.upstream = ""  # the one that used it last
        self._on_stray = on_stray
        self._transport: Any = None
        self._tcp: Any = None  # the transport below TLS, else the same
        self._poll: Callable[[int], list[Any]] | None = None
        self._reused = False
        self._early = False  # the response began before the request was wholly sent
        self._parser: Any = None  # of all answers, one after the other
        self.status = 0
        self.headers: dict[str, str] = {}
        self._came = 0  # bytes, before the head was complete
        self._head: list[bytes] = []  # names and texts in turns, until it is complete
        self._headed = False
        self._done = True  # the answer was whole
        self._keep = False  # and the upstream listens for another request
        self._fault: Exception | None = None
        self._pieces: list[bytes] = []
        # The parser's own call for each HTTP chunk: 200 of them cost 10 µs so, 80 by a method.
        self.on_body = self._pieces.append
        self._unread = 0  # bytes, with the chunks' own heads
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._take: Callable[[bytes], bool] | None = None  # of who waits in ``read``

    # What the caller does

    def ask(self, request: bytes, body: bytes) -> asyncio.Future[None]:
        """Send; to be awaited for the head of the answer, and then it raises Lost or Garbage.

        On a new connection, or on one that ``is_free``.
        """
        self._came = self._unread = 0
        self._reused = self._headed  # there was a response before
        self._headed = self._done = self._keep = self._early = False
        self._transport.writelines((request, body))
        self._waiter = waiter = self.loop.create_future()
        if self._fault is not None:  # it was lost between its making and now
            self._wake()
        return waiter

    async def read(self, take: Callable[[bytes], bool] | None = None) -> bytes:
        """What has come of the body, all at once; empty at its end. Raises Lost or Garbage.

        ``take`` is offered what comes while this waits, before it is woken; True: it is dealt
        with, and the waiting goes on. What ``take`` raises is raised here.
        """
        while not self._pieces:
            if self._done:
                return b""
            if self._fault is not None:
                raise _anew(self._fault)
            self._waiter, self._take = self.loop.create_future(), take
            try:
                await self._waiter
            finally:
                self._waiter = self._take = None
        piece = b"".join(self._pieces)  # the same object where it is the only one
        self._pieces.clear()
        self._unread = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return piece

    @property
    def is_over(self) -> bool:
        """All of the answer was read, though its end may not have been told."""
        return self._done and not self._pieces

    @property
    def is_free(self) -> bool:
        """Another request may go out on it."""
        return (
            self._keep  # so it is done, and not lost
            and not self._pieces
            and not self._transport.is_closing()
            and not self._unsent
        )

    def has_arrived(self) -> bool:
        """Return whether the kernel holds bytes, or the end, that the event loop has not read yet.

        Only for a connection that ``is_free``. 1 µs; a turn of the event loop would cost 50.
        """
        if self._poll is None:
            poll = select.poll()
            poll.register(self._tcp.get_extra_info("socket").fileno(), select.POLLIN)
            self._poll = poll.poll
        return bool(self._poll(0))

    def close(self) -> None:
        """At once: nothing more is wanted, nothing that waits is sent."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def _unsent(self) -> int:
        """Bytes of the request that are still in this process. TLS has a buffer of its own."""
        unsent: int = self._tcp.get_write_buffer_size()
        if self._transport is not self._tcp:
            unsent += self._transport.get_write_buffer_size()
        return unsent

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if self._fault is not None and not self._headed:
            waiter.set_exception(_anew(self._fault))
        else:
            waiter.set_result(None)  # ``read`` looks at what there is

    # What the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called once more where TLS follows on the TCP connection."""
        self._transport = transport
        self._tcp = self._tcp or transport
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, raw: bytes) -> None:
        if self._done:
            self._stray("idle")
            return
        if not self._headed and self._unsent and self._is_early():
            return
        try:
            self._parser.feed_data(raw)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if self._done:
                self._stray("after_response")
            else:
                self._end(Garbage(type(exc).__name__))
            return
        if not self._headed:
            self._came += len(raw)
            if self._came > MOST_HEAD_BYTES:
                self._end(Garbage("the head is too large"))
            return
        if self._take is not None and self._is_taken(self._take):
            return
        self._unread += len(raw)
        if self._unread > HIGH_WATER_BYTES and not self._paused and not self._done:
            self._paused = True
            self._transport.pause_reading()
        if self._waiter is not None and not self._waiter.done():  # as _wake, for each piece
            self._waiter.set_result(None)

    def _is_early(self) -> bool:
        """A response to a request of which we still have a part. True: it cannot be to this one.

        On a new connection it is a refusal, and the last response of that connection.
        """
        self._early = True
        if self._reused:
            self._stray("before_request_sent")
        return self._reused

    def _is_taken(self, take: Callable[[bytes], bool]) -> bool:
        """Offer what came to who waits; False: it has to be read.

        To wake it is a future, a task, nine coroutines that are resumed one inside the other, and
        another turn of the event loop with another look at all sockets.
        """
        pieces, waiter = self._pieces, self._waiter
        if waiter is None or waiter.done() or not pieces or self._done:
            return False
        piece = pieces.pop()
        if pieces:
            piece = b"".join((*pieces, piece))
            pieces.clear()
        try:
            if take(piece):
                return True
        except Exception as exc:  # noqa: BLE001 - not the event loop's: it is raised in ``read``
            waiter.set_exception(exc)
            return True
        pieces.append(piece)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser = None  # it knows us, so neither would go before the collector comes
        if self._done:
            self._keep = False
            self._fault = Lost(str(exc or "closed"))
        elif exc is None and self._headed and self._ends_with_connection:
            self._done = True
            self._wake()
        else:
            self._end(Lost(str(exc or "closed")))

    def _end(self, fault: Exception) -> None:
        self._keep = False
        if not self._done and self._fault is None:
            self._fault = fault
        self._wake()
        self.close()

    def _stray(self, when: When) -> None:
        """Close the connection: its order of requests and responses can no longer be trusted."""
        self._end(Early("a response before the request was wholly sent"))
        if self._on_stray is not None:
            self._on_stray(self, when)

    @property
    def _ends_with_connection(self) -> bool:
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    # What the parser says

    def on_message_begin(self) -> None:
        if self._done:
            raise Garbage("a second answer to one request")

    def on_header(self, name: bytes, text: bytes) -> None:
        if not self._headed:  # else a trailer, which nobody reads
            self._head += (name, text)

    def on_headers_complete(self) -> None:
        head, self._head = self._head, []
        self.status = self._parser.get_status_code()
        if self.status >= 200:  # else "100 Continue", "103 Early Hints": there is more to come
            self.headers = _headers_in(head)
            self._headed = True

    def on_message_complete(self) -> None:
        if self._headed:
            self._done = True
            self._keep = self._parser.should_keep_alive() and not self._early


def _headers_in(head: list[bytes]) -> dict[str, str]:
    """By name in lower case, the first of several. Raises Garbage where there is too much.

    All names at once, and all texts: 9 calls for a head where each line took 7. What llhttp lets
    pass has no line feed in it.
    """
    names, texts = b"\n".join(head[::2]), b"\n".join(head[1::2])
    if len(head) > 2 * MOST_HEAD_LINES or len(names) + len(texts) > MOST_HEAD_BYTES:
        raise Garbage("the head is too large")
    if not head:
        return {}
    told = (names_of if len(names) < LONG_NAMES else parse_names)(names)
    return dict(zip(told, reversed(texts.decode("latin-1").split("\n")), strict=True))


def parse_names(names: bytes) -> list[str]:
    """In lower case and from the last to the first, which so is the one of several that stays."""
    return names.decode("latin-1").lower().split("\n")[::-1]


names_of: Final = lru_cache(maxsize=64)(parse_names)  # a server says the same ones in each answer


def _anew(fault: Exception) -> Exception:
    """One that is raised knows its frames, and those the wire: kept there, both would stay."""
    return type(fault)(*fault.args)


def head_of(url: URL, headers: dict[str, str]) -> bytes:
    """The head of a POST, up to the length of its body.

    Raises ValueError where a line would end within a header, or a sign has no place in one.
    """
    lines = [
        f"POST {url.raw_path_qs} HTTP/1.1",
        f"host: {url.host_port_subcomponent}",
        *(f"{name}: {text}" for name, text in headers.items()),
        "content-length: ",
    ]
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise ValueError("a header for the upstream holds a line break")
    try:
        return head.encode("latin-1")
    except UnicodeEncodeError:  # it would name the sign, which may be one of a secret
        raise ValueError("a header for the upstream holds a sign beyond Latin-1") from None
