"""A redis-server process on a loopback port; a test may stop and restart it."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.fakes.load.kill_process import reserved_port
from tests.fakes.optional_tools import skip_or_fail

REDIS_TIMEOUT_S = 10.0
"""Seconds to wait for Redis; long enough for a loaded machine."""


class RedisServer:
    """A redis-server that a test can stop, restart and query through ``client``.

    ``file``: its configuration file; ``arguments``: further arguments of redis-server.
    """

    def __init__(self, folder: Path, *arguments: str, file: Path | None = None) -> None:
        self._file = [] if file is None else [str(file)]
        self._arguments = arguments
        self._reserved = contextlib.ExitStack()
        self.port = self._reserved.enter_context(reserved_port())
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis.from_url(self.url)

    def start(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the test wrote these arguments
            [shutil.which("redis-server") or "redis-server", *self._file, "--port", str(self.port),
             "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder), "--daemonize", "no",
             "--loglevel", "warning", *self._arguments],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                self.client.ping()
            except redis.RedisError:
                assert time.monotonic() < deadline, "redis-server did not start"
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        self.client.close()
        self.kill()
        self._reserved.close()


@pytest.fixture(scope="session")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        skip_or_fail(
            "redis-server is not installed (Debian: redis-server): tests of Redis are skipped"
        )
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.close()


@pytest.fixture
def redis_server(running_redis: RedisServer) -> RedisServer:
    running_redis.client.flushall()
    return running_redis
