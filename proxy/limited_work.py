"""Run a function on hostile data in a child process that can be ended.

A library that parses text of clients may need seconds for a few kilobytes (one match of a regular
expression holds the interpreter until it ends) or gigabytes of memory. In a serving process this
would stop every stream. So the function runs in a child with limits of time, memory and size:

    html = run_limited("package.module:function", data)              # from a thread
    html = await run_limited_async("package.module:function", data)  # from an event loop

The function takes and returns ``bytes``. Its module is imported in a new interpreter without
Django's settings and without the environment of the gateway, which has credentials.

The child arms its own limits in the kernel (``ITIMER_REAL``, ``RLIMIT_CPU``), so that it ends in
the middle of a match, and even if the gateway was killed. While it waits, it ends as soon as the
gateway's end of the socket is closed. ``PR_SET_PDEATHSIG`` would not do: it is sent when the
*thread* that started the child ends.
"""

import asyncio
import atexit
import contextlib
import json
import math
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

MAX_CHILDREN: Final = 2
MAX_WAITING: Final = 16
"""Calls that may wait for a child; more are refused, so that they cannot occupy all threads."""
START_S: Final = 20.0
"""Time for the start of the interpreter and for the imports; not a part of the work's time."""
MAX_NAME: Final = 200
HEAD: Final = struct.Struct(">cI")
"""Head of each frame: its kind, and the size of its content in bytes."""
JOB, ITEM, READY, RESULT, ERROR = b"J", b"I", b"R", b"=", b"!"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call. Time is for all items together, sizes for all items together too."""

    wall_s: float = 3.0
    cpu_s: float = 1.0
    """CPU time; the kernel counts whole seconds, so it can be up to one second more."""
    memory_bytes: int = 512 * 1024 * 1024
    """Address space of the child, with the interpreter and its libraries (some 100 MB)."""
    input_bytes: int = 1024 * 1024
    output_bytes: int = 4 * 1024 * 1024
    wait_s: float = 3.0
    """How long to wait until a child is free."""


class WorkFailed(Exception):
    """The work has no result. ``results`` are those of the items before the one that failed."""

    def __init__(self, reason: str, results: Sequence[bytes] = ()) -> None:
        super().__init__(reason)
        self.results = list(results)


class TooBusy(WorkFailed):
    """No child was free, or none could be started: the data is not to blame."""


class LimitExceeded(WorkFailed):
    """The item after ``results`` needed more time or memory than allowed; its child was ended."""


class TooLarge(WorkFailed):
    """Input or output has more bytes than allowed."""


class FunctionRaised(WorkFailed):
    """The function raised an exception for the item after ``results``."""


def run_limited(function: str, data: bytes, limits: Limits | None = None) -> bytes:
    """Return the function's result for ``data``. Blocks; raises ``WorkFailed``."""
    return run_each_limited(function, [data], limits)[0]


def run_each_limited(
    function: str, items: Sequence[bytes], limits: Limits | None = None
) -> list[bytes]:
    """Return the function's result for each item, in one call. Blocks; raises ``WorkFailed``."""
    limits = limits or Limits()
    if sum(map(len, items)) > limits.input_bytes:
        raise TooLarge(f"the input has more than {limits.input_bytes:,} bytes")
    with _POOL.child(limits.wait_s) as child:
        return child.run(function, items, limits)


async def run_limited_async(function: str, data: bytes, limits: Limits | None = None) -> bytes:
    """Return the function's result without blocking the event loop. Raises ``WorkFailed``."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_POOL.threads(), run_limited, function, data, limits)


class _Child:
    """One child process, which runs one job after another."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-X", "utf8", "-m", "proxy.limited_work"],
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # Ctrl-C and SIGHUP of a terminal are for the gateway
            )
        self.is_alive = True

    def run(self, function: str, items: Sequence[bytes], limits: Limits) -> list[bytes]:
        self._start_job(function, len(items), limits)
        results: list[bytes] = []
        left = limits.output_bytes
        deadline = time.monotonic() + limits.wall_s
        try:
            for item in items:
                self._send(ITEM, item, deadline)
                kind, content = self._receive(left, deadline)
                if kind == ERROR:
                    raise FunctionRaised(content.decode(errors="replace"), results)
                left -= len(content)
                results.append(content)
        except TooLarge as error:
            raise TooLarge(str(error), results) from None
        except OSError:  # no reply in time, or the child has ended
            raise LimitExceeded(
                f"the work needed more than {limits.wall_s} s, {limits.cpu_s} s of CPU time"
                f" or {limits.memory_bytes:,} bytes of memory",
                results,
            ) from None
        return results

    def _start_job(self, function: str, items: int, limits: Limits) -> None:
        """Return when the child has imported the function."""
        job = json.dumps({"function": function, "items": items, **asdict(limits)})
        deadline = time.monotonic() + START_S
        try:
            self._send(JOB, job.encode(), deadline)
            kind, content = self._receive(limits.output_bytes, deadline)
        except OSError as error:
            raise TooBusy(f"the child did not start: {error!r}") from error
        if kind != READY:
            raise FunctionRaised(content.decode(errors="replace"))

    @property
    def has_ended(self) -> bool:
        """Whether the process ended by itself, for example for lack of the machine's memory."""
        return self._process.poll() is not None

    def end(self) -> None:
        self.is_alive = False
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def abandon(self) -> None:
        """Close the copy of the socket that a forked process has of its parent's child."""
        self._socket.close()
        self._process.returncode = 0  # it is not this process's child: nothing to wait for

    def _send(self, kind: bytes, content: bytes, deadline: float) -> None:
        self._socket.settimeout(_remaining(deadline))
        self._socket.sendall(HEAD.pack(kind, len(content)) + content)

    def _receive(self, max_bytes: int, deadline: float) -> tuple[bytes, bytes]:
        def read(size: int) -> bytes:
            content = bytearray()
            while len(content) < size:
                self._socket.settimeout(_remaining(deadline))
                more = self._socket.recv(min(size - len(content), 1 << 20))
                if not more:
                    raise ConnectionResetError
                content += more
            return bytes(content)

        kind, size = HEAD.unpack(read(HEAD.size))
        if size > max_bytes:
            raise TooLarge("the result has more bytes than allowed")
        return kind, read(size)


def _environment() -> dict[str, str]:
    """Return what the interpreter needs to find its libraries; no setting of the gateway."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PYTHONPATH": path, **kept}


def _remaining(deadline: float) -> float:
    """Return the seconds until the deadline; raise TimeoutError after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Pool:
    """At most ``MAX_CHILDREN`` children, each started when it is needed."""

    def __init__(self) -> None:
        self._admitted = threading.BoundedSemaphore(MAX_CHILDREN + MAX_WAITING)
        self._free = threading.BoundedSemaphore(MAX_CHILDREN)
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._used: set[_Child] = set()
        self._threads: ThreadPoolExecutor | None = None

    @contextlib.contextmanager
    def child(self, wait_s: float) -> Iterator[_Child]:
        if not self._admitted.acquire(blocking=False):
            raise TooBusy(f"{MAX_CHILDREN + MAX_WAITING} calls wait or run already")
        try:
            if not self._free.acquire(timeout=wait_s):
                raise TooBusy(f"no child was free within {wait_s} s")
            try:
                child = self._take()
                try:
                    yield child
                except BaseException:  # it may be in the middle of a job, or short of memory
                    child.end()
                    raise
                finally:
                    self._give_back(child)
            finally:
                self._free.release()
        finally:
            self._admitted.release()

    def threads(self) -> ThreadPoolExecutor:
        """Return the threads in which calls from an event loop wait."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    MAX_CHILDREN + MAX_WAITING, thread_name_prefix="limited-work"
                )
            return self._threads

    def _take(self) -> _Child:
        with self._lock:
            try:
                while self._idle and self._idle[-1].has_ended:
                    self._idle.pop().end()
                child = self._idle.pop() if self._idle else _Child()
            except OSError as error:
                raise TooBusy(f"no child can be started: {error}") from error
            self._used.add(child)
            return child

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            self._used.discard(child)
            if child.is_alive:
                self._idle.append(child)

    def close(self) -> None:
        """End the idle children; those at work end with their time."""
        with self._lock:
            while self._idle:
                self._idle.pop().end()

    def abandon(self) -> None:
        for child in (*self._idle, *self._used):
            child.abandon()


_POOL = _Pool()


def _after_fork() -> None:
    """Start anew in a forked process: its locks may be held by threads that it does not have."""
    global _POOL  # noqa: PLW0603 - one pool in each process
    _POOL.abandon()
    _POOL = _Pool()


def close_children() -> None:
    """End the idle children of this process."""
    _POOL.close()


# --- the child ---


def _serve() -> None:
    """Answer jobs until the gateway closes its end of the socket."""
    os.nice(5)  # streams first
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with socket.socket(fileno=os.dup(0)) as connection, connection.makefile("rwb") as stream:
        while frame := _read_frame(stream):
            if not _answer_job(stream, json.loads(frame)):
                return


def _answer_job(stream: Any, job: dict[str, Any]) -> bool:
    """Answer one job; return whether this process can be used again."""
    try:
        function = _import_function(job["function"])
    except Exception as error:  # noqa: BLE001 - told to the caller
        _write_frame(stream, ERROR, f"{type(error).__name__}: {error}".encode()[:1000])
        return False
    _write_frame(stream, READY, b"")
    _arm(job)
    for _ in range(job["items"]):
        try:
            item = _read_frame(stream)
            if item is None:
                return False
            _write_frame(stream, RESULT, function(item))
        except MemoryError:
            return False  # the caller sees the end of the connection
        except Exception as error:  # noqa: BLE001 - told to the caller
            _write_frame(stream, ERROR, f"{type(error).__name__}: {error}".encode()[:1000])
            return False
    signal.setitimer(signal.ITIMER_REAL, 0)
    return True


def _arm(job: dict[str, Any]) -> None:
    """Let the kernel end this process when the job has used its time."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, job["wall_s"] + 1)  # the gateway is first, if it lives
    used = time.process_time()
    _set_soft_limit(resource.RLIMIT_CPU, math.ceil(used + job["cpu_s"]))
    _set_soft_limit(resource.RLIMIT_AS, job["memory_bytes"])


def _set_soft_limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _import_function(name: str) -> Callable[[bytes], bytes]:
    module, _, attribute = name.partition(":")
    function: Callable[[bytes], bytes] = getattr(import_module(module), attribute)
    return function


def _read_frame(stream: Any) -> bytes | None:
    """Return the content of the next frame; None at the end of the stream."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    _, size = HEAD.unpack(head)
    content: bytes = stream.read(size)
    return content if len(content) == size else None


def _write_frame(stream: Any, kind: bytes, content: bytes) -> None:
    stream.write(HEAD.pack(kind, len(content)) + content)
    stream.flush()


if __name__ == "__main__":
    _serve()
else:
    os.register_at_fork(after_in_child=_after_fork)
    atexit.register(close_children)
