"""Kill the gateway at a chosen point: before or after the nth call of a function.

Run as a program, this module is a gateway that sends itself SIGKILL at its point (function, before or
after, count; ``null``: at none). Each is a fork of a process that has read the settings.
"""

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from bridge_project import command
from tests.fakes.forked_python import PreparedPython, python_with_libraries
from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.prepared import copy_ledger

POINTS = (
    "proxy.gateway.endpoints.messages:identify", "proxy.gateway.endpoints.messages:authorise", "proxy.gateway.endpoints.messages:parse_body",
    "proxy.gateway.endpoints.messages:choose_route", "proxy.gateway.request.request:open_record", "proxy.ledger.recorder:Recorder.begin_open", "proxy.gateway.request.request:Request.wait_until_recorded",
    "proxy.gateway.upstream.attempt:Attempt.build_upstream_request", "proxy.gateway.upstream.attempt:Attempt._post", "proxy.gateway.upstream.attempt:Attempt.relay_events",
    "proxy.gateway.request.request:Request.store_upstream_bytes", "proxy.gateway.upstream.attempt:Attempt.deliver", "proxy.gateway.request.request:Request.accept", "translator.message_stream.events_to_message:MessageFold.feed",
    "proxy.gateway.request.request:Request.first_content_sent", "proxy.gateway.request.request:Request.take_unsaved_reads", "proxy.gateway.request.request:close_record",
    "proxy.ledger.recorder:Recorder.begin_close", "proxy.ledger.journal.journal:Journal.append", "proxy.ledger.journal.journal:Journal._commit",
    "proxy.ledger.journal.segments:Segment.append", "proxy.ledger.journal.journal:Journal._resolve_in_loop", "proxy.ledger.posting.drainer:Drainer.run_round", "proxy.ledger.posting.journal_posting:_read_batch",
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


def import_gateway() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
    import django

    django.setup()
    importlib.import_module("bridge_project.asgi")


@dataclass
class RestartedGateway(Gateway):
    """A gateway whose process is replaced many times on one data directory."""

    _python: PreparedPython | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def prepare_python(self) -> None:
        """Start the process that has read the settings, without a gateway."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "data").exists():
            copy_ledger(self.folder / "data")
        self._python = python_with_libraries().prepare(
            f"{__name__}:import_gateway", self.environment_variables()
        )

    def start_child(self, crash: Crash | None) -> None:
        """Start the gateway; ``wait_for_end`` waits for its end."""
        serve = self.command_line()[2:]  # without the interpreter and manage.py
        with self._log_path.open("ab") as log:
            self.process = self._python.start(
                "-m", __name__, json.dumps(crash), *serve, stdout=log.fileno(), stderr=log.fileno()
            )

    def wait_for_end(self, within_s: float) -> bool:
        """Return whether the child has killed itself in time. Any other end is an error."""
        try:
            status = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        assert status == -signal.SIGKILL, self.log[-4_000:]
        return True

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        self.process.wait(90)

    def close(self) -> None:
        self._end_commands()
        if self.process:
            self.kill()
        self._python.close()


if __name__ == "__main__":
    point = json.loads(sys.argv[1])
    if point:
        inject_crash(Crash(*point))
    sys.argv = ["manage.py", *sys.argv[2:]]
    command.main()
