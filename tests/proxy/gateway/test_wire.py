"""The connection to an upstream: what is HTTP is read as it came, what is not ends it at once."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from yarl import URL

from proxy.gateway import connection_pool
from proxy.gateway.connection_pool import Pool
from proxy.gateway.wire import Garbage, Lost, Origin, Unreachable, Wire, head_of

PATIENCE_S = 60
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def untrusting():
    pytest.fail("no TLS was asked for")


@asynccontextmanager
async def upstream(*answers: bytes, hang_up: bool = False) -> AsyncIterator[tuple[Pool, Origin]]:
    """A server that gives these answers, one for each request, whatever is asked."""

    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            for answer in answers:
                await reader.readuntil(b"ask")
                writer.write(answer)
                await writer.drain()
            if not hang_up:
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = Pool(untrusting)
    async with server:
        yield pool, Origin(tls=False, host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        pool.close()
    if serving:
        await asyncio.wait(serving, timeout=PATIENCE_S)


async def whole(wire: Wire) -> bytes:
    body = b""
    async with asyncio.timeout(PATIENCE_S):
        while piece := await wire.read():
            body += piece
    return body


async def answered(wire: Wire) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        await wire.ask(b"", b"ask")
    return await whole(wire)


async def asked(pool: Pool, origin: Origin) -> Wire:
    wire = pool.idle(origin) or await pool.connect(origin, PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await wire.ask(b"", b"ask")
    return wire


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello"),
        (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + CHUNKED + b"0\r\n\r\n", b""),
    ],
)
async def test_a_connection_serves_one_answer_after_the_other(answer: bytes, body: bytes):
    async with upstream(answer, answer) as (pool, origin):
        first = await asked(pool, origin)
        assert await whole(first) == body
        pool.give_back(first, origin)
        second = await asked(pool, origin)

        assert second is first
        assert await whole(second) == body
        assert "link" not in second.headers
        second.close()


@pytest.mark.parametrize("addresses", [1, 2])
async def test_one_address_is_dialled_without_a_race(addresses: int):
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer) as (pool, origin):
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        named = origin._replace(host="upstream.test")
        pool._addresses["upstream.test", origin.port] = (loop.time(), found * addresses)

        wire = await asked(pool, named)

        assert await whole(wire) == b"ok"
        wire.close()


async def test_of_several_lines_with_one_name_the_first_counts_and_trailers_are_not_read():
    said = b"HTTP/1.1 200 OK\r\nX: 1\r\nx: 2\r\nX: 3\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = said + b"0\r\ny: 1\r\n\r\n"
    async with upstream(answer, CHUNKED + b"0\r\n\r\n") as (pool, origin):
        wire = await asked(pool, origin)
        assert await whole(wire) == b""
        first = wire.headers
        pool.give_back(wire, origin)
        second = await asked(pool, origin)

        assert first == {"x": "1", "transfer-encoding": "chunked"}
        assert not {"x", "y"} & second.headers.keys()
        second.close()


async def test_chunks_that_came_together_are_read_together():
    pieces = b"".join(b"1\r\nx\r\n" for _ in range(200))
    async with upstream(CHUNKED + pieces + b"0\r\n\r\n") as (pool, origin):
        wire = await asked(pool, origin)

        assert await wire.read() == b"x" * 200
        wire.close()


class Offered:
    """What came while somebody waited, in turns with what the upstream says next."""

    def __init__(self, *next_words: bytes) -> None:
        self.words: asyncio.Queue[bytes] = asyncio.Queue()
        self.seen: list[bytes] = []
        self._next = iter(next_words)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"ask")
        writer.write(CHUNKED)
        while word := await self.words.get():
            writer.write(b"%x\r\n%b\r\n" % (len(word), word))
        writer.write(b"0\r\n\r\n")
        writer.close()

    def take(self, piece: bytes) -> bool:
        """Takes all that is small; each time the upstream goes on."""
        self.seen.append(piece)
        self.words.put_nowait(next(self._next))
        if piece == b"broken":
            raise ValueError("as it was told")
        return piece.islower()


@asynccontextmanager
async def waiting(offered: Offered) -> AsyncIterator[Wire]:
    server = await asyncio.start_server(offered.serve, "127.0.0.1", 0)
    pool = Pool(untrusting)
    async with server, asyncio.timeout(PATIENCE_S):
        port = server.sockets[0].getsockname()[1]
        yield await asked(pool, Origin(tls=False, host="127.0.0.1", port=port))
        pool.close()


async def test_what_is_taken_from_who_waits_wakes_nobody():
    offered = Offered(b"two", b"THREE", b"four", b"")
    async with waiting(offered) as wire:
        offered.words.put_nowait(b"one")

        assert await wire.read(offered.take) == b"THREE"
        assert offered.seen == [b"one", b"two", b"THREE"]
        assert await wire.read() == b"four"  # nobody is offered what somebody reads at once
        offered.words.put_nowait(b"")
        assert await wire.read(offered.take) == b""
        assert offered.seen == [b"one", b"two", b"THREE"]


async def test_who_waits_hears_what_went_wrong_with_what_was_taken():
    offered = Offered(b"two")
    async with waiting(offered) as wire:
        offered.words.put_nowait(b"broken")

        with pytest.raises(ValueError, match="as it was told"):
            await wire.read(offered.take)
        offered.words.put_nowait(b"")
        assert await whole(wire) == b"two"


async def test_a_body_without_a_length_lasts_until_the_connection_ends():
    async with upstream(b"HTTP/1.1 200 OK\r\n\r\nhello", hang_up=True) as (pool, origin):
        wire = await asked(pool, origin)

        assert await whole(wire) == b"hello"
        assert not wire.is_free


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
        CHUNKED + b"5\r\nhello\r\n",
    ],
)
async def test_an_answer_that_breaks_off_is_lost(answer: bytes):
    async with upstream(answer, hang_up=True) as (pool, origin):
        with pytest.raises(Lost):
            await answered(await pool.connect(origin, PATIENCE_S))


@pytest.mark.parametrize(
    "answer",
    [
        b"Hello there\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 30_000,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 129 + b"content-length: 0\r\n\r\n",
        CHUNKED + b"5\r\nhello\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    ],
)
async def test_what_is_not_http_ends_the_connection(answer: bytes):
    async with upstream(answer) as (pool, origin):
        wire = await pool.connect(origin, PATIENCE_S)
        with pytest.raises(Garbage):
            await answered(wire)

        assert not wire.is_free


async def test_an_answer_nobody_asked_for_spoils_the_connection():
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer * 2) as (pool, origin):
        wire = await asked(pool, origin)

        assert await whole(wire) == b"ok"
        assert not wire.is_free


async def test_a_connection_whose_response_came_before_the_request_was_sent_is_not_used_again():
    """Even where the upstream reads the rest of the request afterwards."""
    told, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"ask")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await told.wait()
        with contextlib.suppress(ConnectionError):
            await reader.read(-1)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = Pool(untrusting)
    async with server, asyncio.timeout(PATIENCE_S):
        origin = Origin(tls=False, host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        wire = await pool.connect(origin, PATIENCE_S)
        await wire.ask(b"ask", b"x" * 16 * 2**20)
        assert (wire.status, await whole(wire)) == (413, b"no")
        told.set()
        while wire._unsent:  # noqa: ASYNC110 - until the rest has left
            await asyncio.sleep(0.01)

        assert not wire.is_free
        wire.close()
        await ended.wait()


async def test_no_more_connections_wait_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(connection_pool, "MOST_IDLE", 2)
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer, answer) as (pool, origin):
        made = [await pool.connect(origin, PATIENCE_S) for _ in range(3)]
        for owner, wire in enumerate(made):
            assert await answered(wire) == b"ok"
            pool.give_back(wire, origin, owner)

        assert [pool.idle(origin, owner) for owner in range(3)] == [*made[:2], None]
        assert await answered(made[0]) == b"ok"
        pool.give_back(made[0], origin)
        assert pool.idle(origin) is made[0]  # there is room again
        for wire in made:
            wire.close()


async def test_an_origin_is_kept_alive_again_after_a_while(monkeypatch):
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer * 2) as (pool, origin):
        wire = await asked(pool, origin)  # the second one is a stray
        assert await whole(wire) == b"ok"

        now = wire.loop.time()
        assert pool._is_distrusted(origin, now + connection_pool.DISTRUST_S - 1)
        assert not pool._is_distrusted(origin, now + connection_pool.DISTRUST_S + 1)
        assert pool._distrusted == {}


async def test_an_upstream_that_will_not_listen_again_is_believed():
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer) as (pool, origin):
        wire = await asked(pool, origin)
        assert await whole(wire) == b"ok"
        pool.give_back(wire, origin)

        assert pool.idle(origin) is None


async def test_an_upstream_is_read_no_faster_than_it_is_listened_to():
    size = 64 * 2**20
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
    async with upstream(head + bytes(size)) as (pool, origin):
        wire = await asked(pool, origin)
        await asyncio.sleep(0.2)  # it may send all it wants

        longest, left = 0, size
        while left:
            piece = await wire.read()
            longest, left = max(longest, len(piece)), left - len(piece)
        assert longest < 2**20
        wire.close()


async def test_where_nobody_listens_nothing_was_delivered():
    async with upstream() as (pool, origin):
        pass

    with pytest.raises(Unreachable):
        await pool.connect(origin, PATIENCE_S)


@pytest.mark.parametrize("text", ["a\r\nb: c", "a\nb", "a\rb"])
def test_a_header_cannot_hold_another(text: str):
    with pytest.raises(ValueError, match="line break"):
        head_of(URL("http://u.test/v1"), {"x": text})


def test_a_sign_that_no_header_can_hold_is_not_told():
    with pytest.raises(ValueError, match="a sign beyond Latin-1"):
        head_of(URL("http://u.test/v1"), {"authorization": "Bearer €uro"})


def test_the_head_names_its_host_and_ends_before_the_length_of_the_body():
    head = head_of(URL("http://u.test:81/v1/x?version=2"), {"accept": "a"})

    assert head == (
        b"POST /v1/x?version=2 HTTP/1.1\r\nhost: u.test:81\r\naccept: a\r\ncontent-length: "
    )


async def test_a_connection_that_is_lost_before_anything_was_asked_says_so_when_it_is():
    async with upstream(hang_up=True) as (pool, origin):
        wire = await pool.connect(origin, PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while wire._fault is None:  # noqa: ASYNC110 - until the loop has heard that it is lost
                await asyncio.sleep(0.01)
            with pytest.raises(Lost):
                await wire.ask(b"ask", b"")
