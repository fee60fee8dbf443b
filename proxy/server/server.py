"""Run the gateway: bind the listening socket, run uvicorn on it, and shut down cleanly."""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from django.conf import settings
from django.utils.module_loading import import_string
from uvicorn.supervisors import Multiprocess, multiprocess

from proxy.conf import Conf
from proxy.config.load import BridgeFile
from proxy.metrics import multiprocess as shared_metrics
from proxy.secrets import ConfigError

from . import service_manager
from .connection_limits import raise_file_limit, warn_of_low_limit
from .graceful_server import BACKLOG, GracefulServer, Worker
from .http_protocol import HttpProtocol
from .sighup_reload import Reloader
from .websocket_protocol import LiveFeedConnection


def bind(host: str, port: int) -> socket.socket:
    """Return the listening socket. Raises ConfigError if the address or port cannot be used.

    It is bound before the start creates anything, so a port that is in use changes nothing.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "no such port"
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from None


class _Server(GracefulServer):
    """A server that announces when it is ready, and exits with 0 after a signal."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce
        self._announcing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:  # A thread is used, because ``announce`` may block
            self._announcing = asyncio.create_task(asyncio.to_thread(self._announce))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        service_manager.notify(service_manager.STOPPING)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Drain on the first signal. End every stream with an error on the second one."""
        if not self.should_exit:
            super().handle_exit(sig, frame)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_streams)

    def _cancel_streams(self) -> None:
        for task in self.server_state.tasks:
            task.cancel(msg="a second signal ended the drain")

    def on_early_signal(self, *_: Any) -> None:
        """Handle signals before uvicorn installs its handlers, and after it removes them.

        uvicorn raises the signal again after its clean shutdown; that one must not end the process
        with a failure.
        """
        if not self.started:
            sys.exit(0)


multiprocess.Process = Worker  # type: ignore[misc]  # uvicorn has no setting for it


class _Supervisor(Multiprocess):
    def keep_subprocess_alive(self) -> None:
        super().keep_subprocess_alive()
        service_manager.notify(service_manager.WATCHDOG)

    def terminate_all(self) -> None:
        """Close the supervisor's listener, which would accept connections without serving them."""
        service_manager.notify(service_manager.STOPPING)
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


async def _send_watchdog_message() -> None:
    """Tell the service manager that the event loop runs."""
    service_manager.notify(service_manager.WATCHDOG)


def load() -> None:
    """Import the ASGI application. Call it early, for example while waiting for something else."""
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
    """Serve until SIGTERM or SIGINT, then drain. Return False if the server did not start."""
    load()  # an import error must appear here, not in a worker
    warn_of_low_limit(raise_file_limit(), conf)
    config = uvicorn.Config(
        settings.ASGI_APPLICATION.replace(".application", ":application"),
        workers=workers,
        loop="auto",  # uvloop where it is installed
        http=HttpProtocol,
        ws=LiveFeedConnection,
        ws_max_size=4096,  # clients of the live view send nothing
        ws_per_message_deflate=False,  # it would take 32 KB of memory for each client
        interface="asgi3",
        access_log=False,  # the ledger is the access log
        log_config=None,  # uvicorn logs in the gateway's format
        log_level="warning",
        server_header=False,
        proxy_headers=bool(conf.trusted_proxies),
        forwarded_allow_ips=list(conf.trusted_proxies),
        timeout_keep_alive=conf.keep_alive_s,  # type: ignore[arg-type]  # uvicorn annotates it as int
        timeout_graceful_shutdown=round(conf.drain_s),
    )
    if (interval := service_manager.watchdog_interval_s()) and workers == 1:
        config.callback_notify = _send_watchdog_message
        config.timeout_notify = interval  # type: ignore[assignment]  # uvicorn annotates it as int
    if workers > 1:
        shared_metrics.prepare(conf.data_dir)
        supervisor = _Supervisor(config, [listener])
        # This is after uvicorn's own handler, which would restart all workers.
        Reloader(config_path, file).start()
        announce()
        gc.enable()  # each worker configures its own garbage collector
        supervisor.run()
        return True
    Reloader(config_path, file).start()
    server = _Server(config, announce)
    for caught in (signal.SIGTERM, signal.SIGINT):
        signal.signal(caught, server.on_early_signal)
    server.run(sockets=[listener])
    return server.started
