"""The connection to an upstream: HTTP responses are parsed, anything else closes it."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop
from yarl import URL

from proxy.gateway.snapshot.endpoints import Origin, request_head
from proxy.gateway.upstream.connections import (
    DISTRUST_S,
    ConnectError,
    ConnectionLost,
    ConnectionPool,
    InvalidHttpResponse,
    UpstreamConnection,
)
from proxy.models.setup.upstream_connection import HttpProxy
from tests.for_each import for_each

PATIENCE_S = 60
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def no_tls_context(_files):
    pytest.fail("no TLS context is needed")


@asynccontextmanager
async def upstream(
    *answers: bytes, close: bool = False, **options: int
) -> AsyncIterator[tuple[ConnectionPool, Origin]]:
    """A server that sends these responses, one for each request; ``options`` of the pool."""

    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            for answer in answers:
                await reader.readuntil(b"send")
                writer.write(answer)
                await writer.drain()
            if not close:
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = ConnectionPool(no_tls_context, **options)
    async with server:
        yield pool, Origin(tls=False, host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        pool.close()
    if serving:
        await asyncio.wait(serving, timeout=PATIENCE_S)


async def whole(connection: UpstreamConnection) -> bytes:
    body = b""
    async with asyncio.timeout(PATIENCE_S):
        while piece := await connection.read():
            body += piece
    return body


async def read_response(connection: UpstreamConnection) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        await connection.send_request(b"", b"send")
    return await whole(connection)


async def send_request(pool: ConnectionPool, origin: Origin) -> UpstreamConnection:
    connection = pool.acquire_idle(origin) or await pool.connect(origin, PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await connection.send_request(b"", b"send")
    return connection


@for_each(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello"),
        (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + CHUNKED + b"0\r\n\r\n", b""),
    ],
)
async def test_a_connection_serves_several_responses_in_turn(answer: bytes, body: bytes):
    async with upstream(answer, answer) as (pool, origin):
        first = await send_request(pool, origin)
        assert await whole(first) == body
        pool.release(first, origin)
        second = await send_request(pool, origin)

        assert second is first
        assert await whole(second) == body
        assert "link" not in second.headers
        second.close()


@for_each("addresses", [1, 2])
async def test_a_connection_is_made_to_one_or_several_addresses(addresses: int):
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer) as (pool, origin):
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        named = origin._replace(host="upstream.test")
        pool._addresses["upstream.test", origin.port] = (loop.time(), found * addresses)

        connection = await send_request(pool, named)

        assert await whole(connection) == b"ok"
        connection.close()


async def test_a_name_that_resolves_to_a_metadata_service_is_never_called(monkeypatch):
    """Checked at each resolution: an address may change after the upstream was configured."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer) as (pool, origin):
        named, real = origin._replace(host="models.test"), socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda _, *rest, **more: real("127.0.0.1", *rest, **more)
        )
        monkeypatch.setattr("proxy.url_hosts.METADATA", frozenset({"127.0.0.1"}))

        with pytest.raises(ConnectError, match=r"'models\.test' resolves to an address of this"):
            await pool.connect(named, within_s=60)

        monkeypatch.setattr("proxy.url_hosts.METADATA", frozenset())
        (await pool.connect(named, within_s=60)).close()


async def test_the_first_of_equal_header_names_counts_and_trailers_are_ignored():
    head = b"HTTP/1.1 200 OK\r\nX: 1\r\nx: 2\r\nX: 3\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = head + b"0\r\ny: 1\r\n\r\n"
    async with upstream(answer, CHUNKED + b"0\r\n\r\n") as (pool, origin):
        connection = await send_request(pool, origin)
        assert await whole(connection) == b""
        first = connection.headers
        pool.release(connection, origin)
        second = await send_request(pool, origin)

        assert first == {"x": "1", "transfer-encoding": "chunked"}
        assert not {"x", "y"} & second.headers.keys()
        second.close()


async def test_chunks_of_one_read_are_returned_together():
    pieces = b"".join(b"1\r\nx\r\n" for _ in range(200))
    async with upstream(CHUNKED + pieces + b"0\r\n\r\n") as (pool, origin):
        connection = await send_request(pool, origin)

        assert await connection.read() == b"x" * 200
        connection.close()


async def test_a_body_without_a_length_ends_with_the_connection():
    async with upstream(b"HTTP/1.1 200 OK\r\n\r\nhello", close=True) as (pool, origin):
        connection = await send_request(pool, origin)

        assert await whole(connection) == b"hello"
        assert not connection.is_reusable


@for_each(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
        CHUNKED + b"5\r\nhello\r\n",
    ],
)
async def test_a_cut_response_raises(answer: bytes):
    async with upstream(answer, close=True) as (pool, origin):
        with pytest.raises(ConnectionLost):
            await read_response(await pool.connect(origin, PATIENCE_S))


@for_each(
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
async def test_invalid_http_closes_the_connection(answer: bytes):
    async with upstream(answer) as (pool, origin):
        connection = await pool.connect(origin, PATIENCE_S)
        with pytest.raises(InvalidHttpResponse):
            await read_response(connection)

        assert not connection.is_reusable


async def test_a_stray_response_makes_the_connection_unusable():
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer * 2) as (pool, origin):
        connection = await send_request(pool, origin)

        assert await whole(connection) == b"ok"
        assert not connection.is_reusable


async def test_a_response_before_the_whole_request_makes_the_connection_unusable():
    """This is so even if the upstream reads the rest of the request later."""
    response_read, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"send")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await response_read.wait()
        with contextlib.suppress(ConnectionError):
            await reader.read(-1)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = ConnectionPool(no_tls_context)
    async with server, asyncio.timeout(PATIENCE_S):
        origin = Origin(tls=False, host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        connection = await pool.connect(origin, PATIENCE_S)
        await connection.send_request(b"send", b"x" * 16 * 2**20)
        assert (connection.status, await whole(connection)) == (413, b"no")
        response_read.set()
        while connection._unsent:  # noqa: ASYNC110 - until the rest is sent
            await asyncio.sleep(0.01)

        assert not connection.is_reusable
        connection.close()
        await ended.wait()


async def test_the_number_of_idle_connections_is_limited():
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer, answer, max_idle=2) as (pool, origin):
        connections = [await pool.connect(origin, PATIENCE_S) for _ in range(3)]
        for owner, connection in enumerate(connections):
            assert await read_response(connection) == b"ok"
            pool.release(connection, origin, owner)

        assert [pool.acquire_idle(origin, owner) for owner in range(3)] == [*connections[:2], None]
        assert await read_response(connections[0]) == b"ok"
        pool.release(connections[0], origin)
        assert pool.acquire_idle(origin) is connections[0]  # below the limit again
        for connection in connections:
            connection.close()


async def test_an_origin_with_stray_bytes_is_trusted_again_after_a_while():
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer * 2) as (pool, origin):
        connection = await send_request(pool, origin)  # the second response is a stray one
        assert await whole(connection) == b"ok"

        now = connection.loop.time()
        assert pool.is_distrusted(origin, now + DISTRUST_S - 1)
        assert not pool.is_distrusted(origin, now + DISTRUST_S + 1)
        assert pool._distrusted == {}


async def test_connection_close_prevents_the_reuse():
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer) as (pool, origin):
        connection = await send_request(pool, origin)
        assert await whole(connection) == b"ok"
        pool.release(connection, origin)

        assert pool.acquire_idle(origin) is None


async def test_a_connection_to_a_forwarding_proxy_serves_one_request():
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with upstream(answer) as (pool, proxy):
        http_proxy = HttpProxy(proxy.host, proxy.port)
        origin = Origin(tls=False, host="upstream.test", port=80, proxy=http_proxy)
        connection = await send_request(pool, origin)
        assert await whole(connection) == b"ok"
        assert connection.is_reusable
        pool.release(connection, origin)

        assert pool.acquire_idle(origin) is None


async def test_reading_is_paused_while_the_body_is_not_consumed():
    size = 64 * 2**20
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
    async with upstream(head + bytes(size)) as (pool, origin):
        connection = await send_request(pool, origin)
        await asyncio.sleep(0.2)  # time to send more than is buffered

        longest, left = 0, size
        while left:
            piece = await connection.read()
            longest, left = max(longest, len(piece)), left - len(piece)
        assert longest < 2**20
        connection.close()


async def test_a_closed_port_raises_connect_error():
    async with upstream() as (pool, origin):
        pass

    with pytest.raises(ConnectError):
        await pool.connect(origin, PATIENCE_S)


@for_each("text", ["a\r\nb: c", "a\nb", "a\rb"])
def test_a_header_with_a_line_break_raises(text: str):
    with pytest.raises(ValueError, match="line break"):
        request_head(URL("http://u.test/v1"), {"x": text})


def test_a_header_with_a_character_beyond_latin_1_raises():
    with pytest.raises(ValueError, match="a character beyond Latin-1"):
        request_head(URL("http://u.test/v1"), {"authorization": "Bearer €uro"})


def test_the_request_head_has_its_host_and_ends_before_the_content_length():
    head = request_head(URL("http://u.test:81/v1/x?version=2"), {"accept": "a"})

    assert head == (
        b"POST /v1/x?version=2 HTTP/1.1\r\nhost: u.test:81\r\naccept: a\r\ncontent-length: "
    )


async def test_a_connection_lost_before_its_request_raises_at_the_request():
    async with upstream(close=True) as (pool, origin):
        connection = await pool.connect(origin, PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while connection._fault is None:  # noqa: ASYNC110 - until the loop notices the loss
                await asyncio.sleep(0.01)
            with pytest.raises(ConnectionLost):
                await connection.send_request(b"send", b"")


@for_each("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@for_each("reads_request", [False, True])
def test_a_request_counts_as_unread_only_if_no_byte_was_acknowledged(new_loop, reads_request):
    """Only such a request is sent again: the upstream may have answered and charged any other."""

    async def lose_second_request() -> bool:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            pool = ConnectionPool(no_tls_context)
            origin = Origin(tls=False, host="127.0.0.1", port=listener.getsockname()[1])
            connection = await pool.connect(origin, PATIENCE_S)
            server, _ = listener.accept()
            first = connection.send_request(b"", b"send")
            server.recv(100)
            server.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            await first
            assert await whole(connection) == b""
            if not reads_request:
                server.close()
            second = connection.send_request(b"", b"send")
            if reads_request:
                server.recv(100)
                server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                server.close()
            with pytest.raises(ConnectionLost):
                await second
            return connection.is_request_unread

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(lose_second_request()) is not reads_request
