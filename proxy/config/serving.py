"""Run the gateway: a socket of ours, uvicorn behind it, and a clean way out."""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import uvicorn
from django.conf import settings
from django.utils.module_loading import import_string
from uvicorn.supervisors import Multiprocess

from proxy.conf import Conf
from proxy.secrets import ConfigError

from .connection_limits import raise_file_limit, warn_of_low_limit
from .connections import GuardedConnection
from .reloading import Reloader
from .schema import BridgeFile
from .websockets import LiveFeedConnection

ROUNDS: Final = 3
"""Of the event loop: it accepts, makes a connection of it, and hears what was sent."""


def bind(host: str, port: int) -> socket.socket:
    """The listening socket; taken before anything is made, so a taken port changes nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "no such port"
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from None


class _Server(uvicorn.Server):
    """Says when it is ready, and ends with 0 when it was asked to end."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce
        self._announcing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:  # in a thread: there may be something to wait for first
            self._announcing = asyncio.create_task(asyncio.to_thread(self._announce))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """To close a listener resets what waits there: it is taken first, and served."""
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """The first signal drains; a second one ends every stream at once, each with its error."""
        if not self.should_exit:
            super().handle_exit(sig, frame)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        for task in self.server_state.tasks:
            task.cancel(msg="a second signal ended the drain")

    def asked_to_end(self, *_: Any) -> None:
        """For the signals that reach us before uvicorn listens to them, and after.

        uvicorn raises the signal once more when its clean shutdown is done; that one must not kill.
        """
        if not self.started:
            sys.exit(0)


class _Supervisor(Multiprocess):
    def terminate_all(self) -> None:
        """Its own copy of the listener would go on to take connections that nobody serves."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


def load() -> None:
    """Import what serves. Again is fine; whoever has to wait for something does it meanwhile."""
    import_string(settings.ASGI_APPLICATION)


def run(
    listener: socket.socket,
    workers: int,
    conf: Conf,
    config_path: Path | None,
    announce: Callable[[], None],
    *,
    file: BridgeFile | None = None,
) -> bool:
    """Serve until SIGTERM or SIGINT, then let running streams end. False: it never got going."""
    load()  # what cannot be imported fails here, not in a worker
    warn_of_low_limit(raise_file_limit(), conf)
    config = uvicorn.Config(
        settings.ASGI_APPLICATION.replace(".application", ":application"),
        workers=workers,
        loop="auto",  # uvloop where it is installed
        http=GuardedConnection,
        ws=LiveFeedConnection,
        ws_max_size=4096,  # watchers only listen
        ws_per_message_deflate=False,  # 32 KB of memory for each watcher
        interface="asgi3",
        access_log=False,  # the ledger is the access log
        log_config=None,  # its lines look like ours
        log_level="warning",
        server_header=False,
        proxy_headers=bool(conf.trusted_proxies),
        forwarded_allow_ips=list(conf.trusted_proxies),
        timeout_keep_alive=conf.keep_alive_s,  # type: ignore[arg-type]  # an int by its hint
        timeout_graceful_shutdown=round(conf.drain_s),
    )
    if workers > 1:
        supervisor = _Supervisor(config, [listener])
        Reloader(config_path, file).start()  # after uvicorn's own handler, which would restart all
        announce()
        gc.enable()  # each worker has a start of its own
        supervisor.run()
        return True
    Reloader(config_path, file).start()
    server = _Server(config, announce)
    for caught in (signal.SIGTERM, signal.SIGINT):
        signal.signal(caught, server.asked_to_end)
    server.run(sockets=[listener])
    return server.started
