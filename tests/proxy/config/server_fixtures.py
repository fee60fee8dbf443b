"""Serve an application with the gateway's server on a real socket."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from proxy.server.http_protocol import HttpProtocol
from proxy.server.server import _Server

DEADLINE_S = 30.0


@contextmanager
def served(
    application: Any,
    *,
    http: type[HttpProtocol] = HttpProtocol,
    send_buffer: int | None = None,
    **options: Any,
) -> Iterator[tuple[int, uvicorn.Server]]:
    """Serve in a thread. Yield the port and the server.

    ``send_buffer`` limits the bytes that the kernel buffers for a connection.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    config = uvicorn.Config(
        application, http=http, interface="asgi3", lifespan="off", log_config=None,
        **options,
    )  # fmt: skip
    server = _Server(config, lambda: None)
    serving = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    serving.start()
    yield listener.getsockname()[1], server
    server.should_exit = True
    serving.join(DEADLINE_S)
    assert not serving.is_alive()


def post(port: int, path: str, body: bytes, *, method: str = "POST") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    head = f"{method} {path} HTTP/1.1\r\nhost: t\r\ncontent-length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def receive_until(client: socket.socket, ending: bytes) -> bytes:
    received = b""
    deadline = time.monotonic() + DEADLINE_S
    while not received.endswith(ending) and time.monotonic() < deadline:
        received += client.recv(65_536)
    return received
