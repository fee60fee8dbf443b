"""Large reads take turns, so that streams that nobody reads leave time for other connections."""

import asyncio
from typing import Any

from proxy.gateway.upstream.connections import LARGE_READ_BYTES, LargeReads, UpstreamConnection

READERS, READS = 50, 3


async def test_one_iteration_of_the_event_loop_has_one_large_read() -> None:
    loop = asyncio.get_running_loop()
    turns, iteration, seen = LargeReads(loop), 0, list[tuple[int, int]]()

    def count() -> None:
        nonlocal iteration
        iteration += 1
        loop.call_soon(count)

    async def read_all(reader: int) -> None:
        for _ in range(READS):
            await turns.turn()
            seen.append((iteration, reader))

    loop.call_soon(count)
    await asyncio.gather(*map(read_all, range(READERS)))

    iterations = [at for at, _ in seen]
    assert len(set(iterations)) == READERS * READS
    assert [reader for _, reader in seen] == [*range(READERS)] * READS  # all in their order


async def test_a_cancelled_read_does_not_block_the_others() -> None:
    turns = LargeReads(asyncio.get_running_loop())
    tasks = [asyncio.create_task(turns.turn()) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()

    await asyncio.wait_for(asyncio.gather(tasks[1], tasks[3]), 30)
    await asyncio.wait_for(turns.turn(), 30)


async def test_a_large_body_is_read_whole_in_pieces_of_limited_size() -> None:
    body, closed = bytes(range(256)) * 2_000, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await reader.read()  # until the client closes
        writer.close()
        await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    _, connection = await asyncio.get_running_loop().create_connection(
        UpstreamConnection, *server.sockets[0].getsockname()
    )
    await connection.send_request(b"POST / HTTP/1.1\r\nhost: t\r\n\r\n", b"")
    pieces: list[Any] = []
    while piece := await connection.read():
        pieces.append(piece)
        await asyncio.sleep(0.001)  # more bytes arrive than a read returns
    is_complete = connection.response_complete
    connection.close()
    await closed.wait()
    server.close()

    assert b"".join(pieces) == body
    assert max(map(len, pieces)) == LARGE_READ_BYTES
    assert is_complete
