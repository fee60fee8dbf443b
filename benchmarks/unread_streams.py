"""Measure how long /healthz waits while clients do not read the endless streams that they opened.

    python -m benchmarks.unread_streams --streams 50 --delta 5

The upstream sends Chat Completions deltas of ``--delta`` characters as fast as it can. /healthz is
requested over a new connection each time. The output has the longest wait and percentiles.
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import socket
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from tests.fakes.servers.gateway import Gateway, toml_for

ROUTE: Final = '[[routes]]\nmodel = "m"\ntargets = [{ upstream = "chat" }]\n'
BLOCK_BYTES: Final = 60_000
REQUEST: Final = json.dumps(
    {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "x"}]}
).encode()


def serve_endless_streams(started: Connection, delta: int) -> None:
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m"}
    choice = {"index": 0, "delta": {"content": "w" * delta}, "finish_reason": None}
    event = b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n"
    block = event * max(1, BLOCK_BYTES // len(event))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        try:
            while True:
                writer.write(block)
                await writer.drain()
        except OSError:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        started.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def waits_for_health(gateway: Gateway, streams: int, seconds: float) -> list[float]:
    clients = []
    head = f"POST /v1/messages HTTP/1.1\r\nhost: g\r\nx-api-key: {gateway.key}\r\n"
    for _ in range(streams):
        client = socket.create_connection(("127.0.0.1", gateway.port))
        client.sendall(f"{head}content-length: {len(REQUEST)}\r\n\r\n".encode() + REQUEST)
        clients.append(client)
    end, waits = time.monotonic() + seconds, []
    while (begin := time.monotonic()) < end:
        probe = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
        probe.request("GET", "/healthz")
        probe.getresponse().read()
        probe.close()
        waits.append(time.monotonic() - begin)
        time.sleep(0.02)
    for client in clients:
        client.close()
    return waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--delta", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    receiver, sender = multiprocessing.Pipe()
    upstream = multiprocessing.Process(
        target=serve_endless_streams, args=(sender, options.delta), daemon=True
    )
    upstream.start()
    base_url = f"http://127.0.0.1:{receiver.recv()}/v1"
    config = toml_for({"chat": {"dialect": "chat", "base_url": base_url}}, ROUTE)
    with tempfile.TemporaryDirectory() as folder, Gateway(Path(folder) / "g", config) as gateway:
        waits = waits_for_health(gateway, options.streams, options.seconds)
    upstream.kill()
    p99 = statistics.quantiles(waits, n=100)[98]
    print(f"longest {max(waits):.2f} s, 99 % {p99:.3f} s, median {statistics.median(waits):.4f} s")


if __name__ == "__main__":
    main()
