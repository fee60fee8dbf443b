"""Serve the sandbox on a loopback port, in a separate thread with its own event loop."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Final

import uvicorn

HOST: Final = "127.0.0.1"


def free_socket(port: int) -> socket.socket:
    """Return a listening socket on this port, or on any free port if this one is in use."""
    try:
        return socket.create_server((HOST, port))
    except OSError:
        return socket.create_server((HOST, 0))


def url_of(listener: socket.socket) -> str:
    """Return the base URL of the sandbox that listens on this socket."""
    return f"http://{HOST}:{listener.getsockname()[1]}/v1"


@contextlib.contextmanager
def running(listener: socket.socket) -> Iterator[str]:
    """Serve the sandbox on this socket during the ``with`` block; yield its base URL."""
    from .app import application  # noqa: PLC0415 - most processes do not need this import

    config = uvicorn.Config(application, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    sockets = [listener]
    thread = threading.Thread(target=server.run, args=(sockets,), name="sandbox", daemon=True)
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        server.force_exit = True  # the sandbox's only client, the gateway, has stopped
        thread.join(timeout=5)
        listener.close()
