"""Kill the gateway at a chosen point: before or after the nth call of a function.

Run as a program this module is a fork server: it imports Django once and forks a child for each line
of its input (function, before or after, count). The child serves requests and sends itself SIGKILL
at its point. The fork server prints the pid of the child and then its exit status.
"""

import gc
import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.fakes.servers.gateway import REPOSITORY, Gateway
from tests.fakes.servers.prepared import copy_ledger

POINTS = (
    "proxy.gateway.endpoints.messages:identify", "proxy.gateway.endpoints.messages:authorise", "proxy.gateway.endpoints.messages:parse_body",
    "proxy.gateway.endpoints.messages:choose_route", "proxy.gateway.exchange.request_context:open_record", "proxy.ledger.recorder:Recorder.begin_open", "proxy.gateway.exchange.request_context:RequestContext.wait_until_recorded",
    "proxy.gateway.upstream.attempt:Attempt.build_upstream_request", "proxy.gateway.upstream.attempt:Attempt._post", "proxy.gateway.upstream.attempt:Attempt.relay_events",
    "proxy.gateway.exchange.request_context:RequestContext.store_upstream_bytes", "proxy.gateway.upstream.attempt:Attempt.deliver", "proxy.gateway.exchange.request_context:RequestContext.accept", "translator.message_stream.events_to_message:MessageFold.feed",
    "proxy.gateway.exchange.request_context:RequestContext.first_content_sent", "proxy.gateway.exchange.request_context:RequestContext.take_unsaved_reads", "proxy.gateway.exchange.request_context:close_record",
    "proxy.ledger.recorder:Recorder.begin_close", "proxy.ledger.journal.journal:Journal.append", "proxy.ledger.journal.journal:Journal._commit",
    "proxy.ledger.journal.segments:Segment.append", "proxy.ledger.journal.journal:Journal._resolve_in_loop", "proxy.ledger.posting.drainer:Drainer._round", "proxy.ledger.posting.journal_posting:_post_some",
    "proxy.ledger.posting.journal_posting:_post", "proxy.ledger.posting.ledger_writer:write_to_database", "proxy.ledger.journal.reader:JournalReader.mark_posted",
    "proxy.ledger.posting.drainer:save_drain_watermark", "proxy.ledger.posting.journal_posting:remove_posted_segments", "proxy.ledger.journal.reader:JournalReader.save_watermark",
    "proxy.ledger.posting.orphans:_next_records", "proxy.ledger.journal.reader:JournalReader.ready_ids", "proxy.ledger.journal.reader:JournalReader.read", "proxy.ledger.journal.locks:take",
    "proxy.gateway.snapshot.config_snapshot:load_snapshot", "proxy.gateway.endpoints.http_consumer:StreamingHttpConsumer.send_headers",
    "proxy.gateway.endpoints.http_consumer:StreamingHttpConsumer.send_body",
)  # fmt: skip
"""The functions to kill the process in: open, connect, each step of a response, close, drain.

Each gives two points: before and after the call.
"""


class Crash(NamedTuple):
    place: str
    when: str  # before | after
    count: int = 1

    @property
    def label(self) -> str:
        return f"{self.when} {self.place.partition(':')[2]}" + (
            f", {self.count} times" * (self.count > 1)
        )


CRASHES = tuple(
    Crash(place, when, count)
    for place in POINTS
    for when in ("before", "after")
    for count in (1, 3)
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def resolve(place: str) -> tuple[Any, str]:
    """Return the object and the attribute name of a point. Raises if the function is missing."""
    module, _, path = place.partition(":")
    target: Any = importlib.import_module(module)
    *steps, name = path.split(".")
    for step in steps:
        target = getattr(target, step)
    if not callable(getattr(target, name)):
        raise TypeError(f"{place} is no function")
    return target, name


def inject_crash(crash: Crash) -> None:
    """Patch a function so that the process ends before or after its nth call."""
    target, name = resolve(crash.place)
    original, left = getattr(target, name), iter(range(crash.count - 1, -1, -1))

    def due() -> bool:
        return next(left, 1) == 0

    def called(*arguments: Any, **named: Any) -> Any:
        last = due()
        if last and crash.when == "before":
            die()
        result = original(*arguments, **named)
        if last:
            die()
        return result

    async def awaited(*arguments: Any, **named: Any) -> Any:
        last = due()
        if last and crash.when == "before":
            die()
        result = await original(*arguments, **named)
        if last:
            die()
        return result

    setattr(target, name, awaited if inspect.iscoroutinefunction(original) else called)


def run_fork_server() -> None:
    """Run the fork server. It starts no thread, because fork copies only the calling thread."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
    import django

    django.setup()
    importlib.import_module("bridge_project.asgi")
    from django.core.management import call_command
    from django.db import connections

    arguments = sys.argv[1:]
    gc.freeze()  # a collection in a child would copy the memory of all these modules
    for line in sys.stdin:
        connections.close_all()
        child = os.fork()
        if child == 0:
            try:
                crash = Crash(*json.loads(line)) if line.strip() != "none" else None
                if crash:
                    inject_crash(crash)
                call_command("serve", *arguments)
            finally:
                os._exit(0)
        print(child, flush=True)  # noqa: T201 - this is the output of the program
        _, status = os.waitpid(child, 0)
        print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else status, flush=True)  # noqa: T201


@dataclass
class ForkServerGateway(Gateway):
    """A gateway whose process is replaced many times on one data directory."""

    pid: int = 0

    def start_fork_server(self) -> None:
        """Start the fork server without a child."""
        self.folder.mkdir(parents=True, exist_ok=True)
        assert self.config is not None
        if not (self.folder / "data").exists():
            copy_ledger(self.folder / "data")
        (self.folder / "bridge.toml").write_text(self.config, encoding="utf-8")
        command = [sys.executable, "-m", "tests.fakes.load.crash_points", "--host", "127.0.0.1",
                   "--port", str(self.port), "--config", str(self.folder / "bridge.toml")]  # fmt: skip
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - the test wrote this command
            command, cwd=REPOSITORY, env=self._environment(), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        self._ended = threading.Event()
        self._status: int | None = None

    def start_child(self, crash: Crash | None) -> None:
        """Fork a child; ``wait_for_end`` waits for its end."""
        assert self.process.stdin
        assert self.process.stdout
        self._ended.clear()
        self.process.stdin.write((json.dumps(crash) if crash else "none") + "\n")
        self.process.stdin.flush()
        self.pid = int(self._read_number())

        def watch() -> None:
            self._status = int(self._read_number())
            self._ended.set()

        threading.Thread(target=watch, daemon=True).start()

    def _read_number(self) -> str:
        """Return the fork server's next number; skip lines that the child prints to the same pipe."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.strip().lstrip("-").isdigit():
                return line
        raise AssertionError(f"the fork server has ended; its log:\n{self.log}")

    def wait_for_end(self, within_s: float) -> bool:
        """Return whether the child has killed itself in time. Any other end is an error."""
        ended = self._ended.wait(within_s)
        assert not ended or self._status == -signal.SIGKILL, self.log[-4_000:]
        return ended

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if not self._ended.is_set():
            os.kill(self.pid, how)
            assert self._ended.wait(90)

    def close(self) -> None:
        self._end_commands()
        self.kill()
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)
        if self.process.stdout:
            self.process.stdout.close()


__all__ = ["CRASHES", "POINTS", "Crash", "ForkServerGateway", "resolve"]

if __name__ == "__main__":
    run_fork_server()
