"""Forward proxies on loopback: Debian's tinyproxy, which requires a password, and one written here.

tinyproxy does not speak TLS with its clients; ``TlsFront`` does it in front of the proxy, as
stunnel would.
"""

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.fakes.optional_tools import skip_loudly

CONFIG = """
Port {port}
Listen 127.0.0.1
Bind {address}
Timeout 600
LogFile "{log}"
LogLevel Connect
BasicAuth gateway pass-of-the-proxy
"""
ADDRESS = "127.0.0.2"
"""The address from which the proxy connects. A server that accepts connections only from this
address can be reached only through the proxy."""
CREDENTIALS = "gateway:pass-of-the-proxy"
START_WITHIN_S = 20


@dataclass(frozen=True, slots=True)
class Tinyproxy:
    port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()


@contextmanager
def running_tinyproxy(folder: Path) -> Iterator[Tinyproxy]:
    program = shutil.which("tinyproxy")
    if program is None:
        skip_loudly("NO FORWARD PROXY: tinyproxy is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config, log = folder / "tinyproxy.conf", folder / "tinyproxy.log"
    config.write_text(CONFIG.format(port=port, log=log, address=ADDRESS))
    process = subprocess.Popen([program, "-d", "-c", str(config)])  # noqa: S603 - the test wrote this command
    try:
        _wait_until_listening(port)
        yield Tinyproxy(port, log)
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("tinyproxy did not start")


class Relay:
    """A server in a thread, which passes the bytes of each connection on to a port of loopback."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        """``tls``: the context for connections to this server; None: they are plain."""
        self.port = 0
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._listening = threading.Event()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(START_WITHIN_S), "the relay did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def port_behind(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        """Return the port to connect to."""
        raise NotImplementedError

    def _run(self) -> None:
        server = self._loop.run_until_complete(
            asyncio.start_server(self._relay, "127.0.0.1", 0, ssl=self._tls)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = await self.port_behind(reader, writer)
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))


class TlsFront(Relay):
    """A TLS server in front of a port."""

    def __init__(self, context: ssl.SSLContext, port_behind: int) -> None:
        super().__init__(context)
        self._port_behind = port_behind

    async def port_behind(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        return self._port_behind


class RedirectingProxy(Relay):
    """A forward proxy that opens each tunnel to a server on loopback, whatever host is named.

    So a configuration with the host names of clouds can be used unchanged.
    """

    def __init__(self, ports: Mapping[str, int]) -> None:
        """``ports``: the port of each host, without that of the URL."""
        super().__init__(None)
        self._ports = ports

    async def port_behind(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        head = await reader.readuntil(b"\r\n\r\n")
        host = head.decode("latin-1").split()[1].rpartition(":")[0]
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        return self._ports[host]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    writer.close()
