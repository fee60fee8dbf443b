"""A server that loses no connection at its shutdown, for a single process and for each worker.

This module imports no models: a worker imports it before Django is set up.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

import uvicorn
from uvicorn.supervisors.multiprocess import Process

SETUP_ITERATIONS: Final = 3
"""Event loop iterations until an accepted connection is served: accept, set up, read."""

BACKLOG: Final = 2048
"""Maximum of connections in the accept queue of a listener."""


class GracefulServer(uvicorn.Server):
    """Accepts the connections of the accept queue before it closes its listener.

    The kernel resets what is in the queue of a socket when its last listener closes. Nothing runs
    between the last accept and the close, so only a client that connects within these
    microseconds is reset.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        waiting = list(_accept_all(sockets or ()))
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        loop = asyncio.get_running_loop()
        for client in waiting:
            with contextlib.suppress(OSError):  # the client has left
                await loop.connect_accepted_socket(self._new_connection, client)
        for _ in range(SETUP_ITERATIONS):
            await asyncio.sleep(0)
        await super().shutdown(sockets)

    def _new_connection(self) -> Any:
        """Return the protocol of a connection that ends after its first response."""
        new: Any = self.config.http_protocol_class
        protocol = new(self.config, self.server_state, self.lifespan.state)
        protocol.shutdown()
        return protocol


def _accept_all(listeners: Sequence[socket.socket]) -> Iterator[socket.socket]:
    for listener in listeners:
        # OSError also ends it: the limit of open files is reached, or the client has left.
        with contextlib.suppress(OSError):
            for _ in range(BACKLOG):
                yield listener.accept()[0]


class Worker(Process):
    """One of several worker processes, with the same server as a single process."""

    @property
    def server(self) -> uvicorn.Server:
        if self._server is None:
            self._server = GracefulServer(self.config)
        return self._server
