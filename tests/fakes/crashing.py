"""The gateway, killed by itself at a labelled point: before or after the nth call of a function.

Run as a program this is a nursery: Django is imported once, then each line of its input (a place,
before or after, a count) makes a child that serves and, at its point, ends as by ``kill -9``. What
became of the child is a line of output. Nothing of this is in the product.
"""

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

from .gateway import REPOSITORY, Gateway

POINTS = (
    "proxy.gateway.consumer:authenticate", "proxy.gateway.consumer:parsed",
    "proxy.gateway.consumer:choose_route", "proxy.gateway.ledger:open_record", "proxy.record.recorder:Recorder.enter", "proxy.gateway.ledger:Exchange.durable",
    "proxy.gateway.pump:Attempt.translated", "proxy.gateway.pump:Attempt._dial", "proxy.gateway.pump:Attempt.relay_events",
    "proxy.gateway.ledger:Exchange.read", "proxy.gateway.pump:Attempt.deliver", "proxy.gateway.ledger:Exchange.said",
    "proxy.gateway.ledger:Exchange.spoke", "proxy.gateway.ledger:Exchange.unsaved", "proxy.gateway.ledger:close_record",
    "proxy.record.recorder:Recorder.settle", "proxy.record.loop_line:LoopLine.enter", "proxy.record.loop_line:LoopLine._hear",
    "proxy.record.thread_line:ThreadLine._say", "proxy.record.drainer:Drainer._round", "proxy.record.drainer:_drain_some",
    "proxy.record.drainer:_post", "proxy.record.posting:post", "proxy.record.spool:Spool.call",
    "proxy.record.drainer:mark", "proxy.record.drainer:tidy", "proxy.record.spool:Spool.renew",
    "proxy.record.recovery:_closing", "proxy.record.recorder:_left_behind", "proxy.record.slots:take",
    "proxy.gateway.directory:load_snapshot", "proxy.gateway.base:StreamingHttpConsumer.begin",
    "proxy.gateway.base:StreamingHttpConsumer.write",
)  # fmt: skip
"""Each is a point before its call and one after: open, dial, every step of an answer, close, drain."""


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


def plant(crash: Crash) -> None:
    """Put the end of the process before or after a function's nth call."""
    module, _, path = crash.place.partition(":")
    owner: Any = importlib.import_module(module)
    *steps, name = path.split(".")
    for step in steps:
        owner = getattr(owner, step)
    real, left = getattr(owner, name), iter(range(crash.count - 1, -1, -1))

    def due() -> bool:
        return next(left, 1) == 0

    def called(*arguments: Any, **named: Any) -> Any:
        last = due()
        if last and crash.when == "before":
            die()
        told = real(*arguments, **named)
        if last:
            die()
        return told

    async def awaited(*arguments: Any, **named: Any) -> Any:
        last = due()
        if last and crash.when == "before":
            die()
        told = await real(*arguments, **named)
        if last:
            die()
        return told

    setattr(owner, name, awaited if inspect.iscoroutinefunction(real) else called)


def nursery() -> None:
    """The program: children are made before any thread is."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
    import django

    django.setup()
    importlib.import_module("bridge_project.asgi")
    from django.core.management import call_command
    from django.db import connections

    serve = sys.argv[1:]
    for line in sys.stdin:
        connections.close_all()
        child = os.fork()
        if child == 0:
            try:
                crash = Crash(*json.loads(line)) if line.strip() != "none" else None
                if crash:
                    plant(crash)
                call_command("serve", *serve)
            finally:
                os._exit(0)
        print(child, flush=True)  # noqa: T201 - what the program is for
        _, status = os.waitpid(child, 0)
        print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else status, flush=True)  # noqa: T201


@dataclass
class Nursery(Gateway):
    """A gateway that lives many lives on one data directory, each with its own end."""

    pid: int = 0

    def begin(self) -> None:
        """Import everything; no child yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        assert self.config is not None
        (self.folder / "bridge.toml").write_text(self.config, encoding="utf-8")
        command = [sys.executable, "-m", "tests.fakes.crashing", "--host", "127.0.0.1",
                   "--port", str(self.port), "--config", str(self.folder / "bridge.toml")]  # fmt: skip
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own command line
            command, cwd=REPOSITORY, env=self._environment(), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        self._ended = threading.Event()
        self._status: int | None = None

    def live(self, crash: Crash | None) -> None:
        """Start a child; ``ended`` tells when it is gone."""
        assert self.process.stdin
        assert self.process.stdout
        self._ended.clear()
        self.process.stdin.write((json.dumps(crash) if crash else "none") + "\n")
        self.process.stdin.flush()
        self.pid = int(self._number())

        def watch() -> None:
            self._status = int(self._number())
            self._ended.set()

        threading.Thread(target=watch, daemon=True).start()

    def _number(self) -> str:
        """The nursery's next line; what the child prints to the same pipe is passed over."""
        assert self.process.stdout
        for line in self.process.stdout:
            if line.strip().lstrip("-").isdigit():
                return line
        raise AssertionError(f"the nursery is gone; it said:\n{self.log}")

    def ended(self, within_s: float) -> bool:
        return self._ended.wait(within_s)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if not self._ended.is_set():
            os.kill(self.pid, how)
            assert self._ended.wait(90)

    def close(self) -> None:
        self.kill()
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)
        if self.process.stdout:
            self.process.stdout.close()


__all__ = ["CRASHES", "Crash", "Nursery"]

if __name__ == "__main__":
    nursery()
