"""Debian's tinyproxy as a forward proxy on loopback, which asks for a password."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.optional_tools import skip_loudly

CONFIG = """
Port {port}
Listen 127.0.0.1
Timeout 600
LogFile "{log}"
LogLevel Connect
BasicAuth gateway pass-of-the-proxy
"""
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
    config.write_text(CONFIG.format(port=port, log=log))
    process = subprocess.Popen([program, "-d", "-c", str(config)])  # noqa: S603 - a test server
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
