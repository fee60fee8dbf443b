"""Python processes that start as forks of a process that has imported the libraries already.

Importing takes a second of CPU time, a fork some milliseconds, and a run of the tests starts
hundreds of processes. The child does what the interpreter would do with the same command line: it
runs the program as ``__main__``, with its own environment, session and standard streams, and ends as
any Python process does. Only the libraries are there before.

Run as a program, this module is such a process: it reads requests from a socket, forks a child for
each, and reports the child's pid and its exit code over a pipe that came with the request.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

REPOSITORY: Final = Path(__file__).parents[2]
LIBRARIES: Final = (
    "aiohttp",
    "channels.generic.websocket",
    "channels.routing",
    "cryptography.fernet",
    "dj_database_url",
    "django.contrib.admin",
    "django.contrib.postgres.fields",
    "django.contrib.staticfiles.handlers",
    "django.core.asgi",
    "django.core.management.commands.migrate",
    "django.db.backends.sqlite3.base",
    "django.template.defaultfilters",
    "httpx",
    "markdown_it",
    "msgspec",
    "prometheus_client.multiprocess",
    "requests",
    "rest_framework.serializers",
    "rich.console",
    "tomllib",
    "translator.translate",
    "unfold",
    "uvicorn.protocols.http.httptools_impl",
    "whitenoise.middleware",
    "yaml",
    "yarl",
)
"""Modules that the gateway imports, that take long, and that need no settings."""


class ForkedProcess:
    """A child of a prepared process, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, status: int) -> None:
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()
        self._lines = b""
        while b"\n" not in self._lines:
            self._lines += self._read()
        pid, _, self._lines = self._lines.partition(b"\n")  # the exit code may have arrived too
        self.pid = int(pid)

    def __del__(self) -> None:
        os.close(self._status)

    def poll(self) -> int | None:
        """Return the exit code (minus the number of the signal that ended it), None while it runs."""
        with self._lock:
            while self.returncode is None:
                if self._lines.endswith(b"\n"):
                    self.returncode = int(self._lines)
                elif select.select([self._status], [], [], 0)[0]:
                    self._lines += self._read()
                else:
                    break
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        ends = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if ends is None else ends - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            select.select([self._status], [], [], left)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self) -> bytes:
        read = os.read(self._status, 64)
        assert read, "the prepared process has ended"
        return read


class PreparedPython:
    """A process that has imported modules and starts programs as its children; ``close`` ends it."""

    def __init__(self, process: "subprocess.Popen[bytes] | ForkedProcess", channel: socket.socket):
        self._process = process
        self._channel = channel
        self._lock = threading.Lock()

    @classmethod
    def with_libraries(cls) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "tests.fakes.forked_python", str(theirs.fileno())],
                cwd=REPOSITORY, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONUNBUFFERED": "1"}, start_new_session=True,
            )  # fmt: skip
        return cls(process, ours)

    def prepare(self, setup: str, environment: Mapping[str, str] | None = None) -> "PreparedPython":
        """Start a child that calls a function (``module:name``) and then starts programs itself."""
        ours, theirs = socket.socketpair()
        with theirs:
            request = {"setup": setup, "environment": _environment(environment)}
            return PreparedPython(self._send(request, [theirs.fileno()]), ours)

    def start(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        cwd: Path = REPOSITORY,
        stdin: int | None = None,
        stdout: int,
        stderr: int,
        open_files: tuple[int, int] | None = None,
    ) -> ForkedProcess:
        """Start ``python ARGUMENTS``: a file, or ``-m`` and a module, and what the program gets.

        ``environment`` replaces all variables. The streams are file descriptors (no standard input:
        it is empty), ``open_files`` the soft and the hard limit of open files.
        """
        request = {
            "arguments": arguments,
            "environment": _environment(environment),
            "cwd": str(cwd),
            "open_files": open_files,
        }
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
            streams = [nothing.fileno() if stdin is None else stdin, stdout, stderr]
            return self._send(request, streams)

    def close(self) -> None:
        self._channel.close()
        self._process.wait(60)

    def _send(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> ForkedProcess:
        reads, writes = os.pipe()
        try:
            with self._lock:
                text = json.dumps(request).encode() + b"\n"
                sent = socket.send_fds(self._channel, [text], [writes, *descriptors])
                self._channel.sendall(text[sent:])
        finally:
            os.close(writes)
        return ForkedProcess(reads)


@functools.cache
def python_with_libraries() -> PreparedPython:
    """Return the process of this process of pytest, and end it at the exit."""
    prepared = PreparedPython.with_libraries()
    atexit.register(prepared.close)
    return prepared


def _environment(given: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if given is None else dict(given)


# The rest runs in the prepared process.


class Children:
    """The requests that arrive over a socket, and the children that run them."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._statuses: dict[int, int] = {}  # pid -> descriptor to report to
        self._wake, self._woken = os.pipe()
        for end in (self._wake, self._woken):
            os.set_blocking(end, False)

    def fork_for_each_request(self) -> tuple[dict[str, Any], list[int]]:
        """Return a request and its descriptors in the child that runs it; at the end exit."""
        signal.set_wakeup_fd(self._woken)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it only ends the ``select``
        gc.collect()
        gc.freeze()  # a collection in a child would copy the memory of all these modules
        while True:
            readable, _, _ = select.select([self._channel, self._wake], [], [])
            if self._wake in readable:
                os.read(self._wake, 4096)
                self._report_ended()
            if self._channel in readable:
                request, (status, *descriptors) = receive(self._channel)
                pid = os.fork()
                if pid == 0:
                    self._leave()
                    os.close(status)
                    return request, descriptors
                os.write(status, f"{pid}\n".encode())
                self._statuses[pid] = status
                for descriptor in descriptors:
                    os.close(descriptor)

    def _report_ended(self) -> None:
        for pid in [*self._statuses]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                descriptor = self._statuses.pop(pid)
                with contextlib.suppress(BrokenPipeError):  # the test does not read it
                    os.write(descriptor, f"{os.waitstatus_to_exitcode(status)}\n".encode())
                os.close(descriptor)

    def _leave(self) -> None:
        """Give up in a child what belongs to its parent."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self._wake, self._woken, *self._statuses.values()):
            os.close(descriptor)
        self._channel.close()


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next request and its descriptors; exit at the end of the input."""
    text, descriptors, _, _ = socket.recv_fds(channel, 2**16, 8)
    while text and not text.endswith(b"\n"):
        text += channel.recv(2**16)
    if not text:
        sys.exit()
    return json.loads(text), descriptors


def take_place(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Take the session, the streams, the folder and the limits that the request names."""
    os.setsid()  # so that only this process and its children are killed with it
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    if request["open_files"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["open_files"]))


def run_as_main(arguments: Sequence[str]) -> None:
    """Run a file, or ``-m`` and a module, as the interpreter does."""
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        runpy.run_path(arguments[0], run_name="__main__")


def run_program(channel: socket.socket) -> None:
    """Run the program of each request in a child, which returns from here to end as Python does."""
    while True:
        request, descriptors = Children(channel).fork_for_each_request()
        if request["environment"] is not None:
            os.environ.clear()
            os.environ.update(request["environment"])
        if "arguments" in request:
            take_place(request, descriptors)
            run_as_main(request["arguments"])
            return
        channel = socket.socket(fileno=descriptors[0])
        pkgutil.resolve_name(request["setup"])()


if __name__ == "__main__":
    for library in LIBRARIES:
        importlib.import_module(library)
    run_program(socket.socket(fileno=int(sys.argv[1])))
