"""The record as a process of its own, so that it can be killed; commands go in, answers come out.

Run as a program it takes one JSON command a line: {"do": "open", "id": ...}, "chunk", "close",
"state", "stop". A line comes back when the command is done; for open and close that is when the
record is durable.
"""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = "tests.proxy.record.settings"


class Driver:
    """A running record over a data directory of its own, on SQLite unless told otherwise."""

    def __init__(self, directory: Path, database_url: str = "") -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.database = directory / "ledger.sqlite3"
        self.environment = {
            **os.environ,
            "BRIDGE_DATA_DIR": str(directory),
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "PYTHONPATH": str(ROOT),
        }
        self.environment.pop("DATABASE_URL", None)
        if database_url:
            self.environment["DATABASE_URL"] = database_url
        self.manage("migrate", "--verbosity", "0")
        self.child: subprocess.Popen[str] | None = None

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "manage.py"), *arguments]
        return subprocess.run(  # noqa: S603 -- our own program
            command, env=self.environment, cwd=ROOT, check=True, capture_output=True, text=True
        )

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.proxy.record.driver"]
        self.child = subprocess.Popen(  # noqa: S603 -- our own program
            command,
            env=self.environment,
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=1,
        )
        assert self.read() == {"ready": True}

    def send(self, **command: Any) -> None:
        assert self.child
        assert self.child.stdin
        self.child.stdin.write(json.dumps(command) + "\n")
        self.child.stdin.flush()

    def read(self) -> Any:
        assert self.child
        assert self.child.stdout
        line = self.child.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    def ask(self, **command: Any) -> Any:
        self.send(**command)
        return self.read()

    def kill(self) -> list[Any]:
        """kill -9; returns what it had still answered."""
        assert self.child
        assert self.child.stdout
        self.child.send_signal(signal.SIGKILL)
        lines = self.child.stdout.read().splitlines(keepends=True)
        self.child.wait()
        self._close_pipes()
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def end(self) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.child.stdin, self.child.stdout) if self.child else ():
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.database, timeout=20) as link:
            found = link.execute(sql, parameters).fetchall()
        link.close()
        return found


def until(true: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Poll until it is so; fail when it takes too long."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not so after {within_s} s"
        time.sleep(0.05)


async def _serve() -> None:
    import django

    django.setup()
    from proxy.record.errors import SpoolUnavailable
    from proxy.record.recorder import recorder
    from proxy.record.records import Chunk

    from .making import closing, opening

    recorder.start()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = set()

    def tell(**said: Any) -> None:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    async def obey(command: dict[str, Any]) -> None:
        number = command.get("id", 0)
        match command["do"]:
            case "open":
                try:
                    fields = command.get("fields", {})
                    await recorder.open(opening(number, created=time.time(), **fields))
                    tell(opened=number)
                except SpoolUnavailable as exc:
                    tell(refused=number, why=str(exc))
            case "chunk":
                reads = [(ms, text.encode()) for ms, text in command["reads"]]
                recorder.chunk(Chunk(id=opening(number).id, reads=reads))
            case "close":
                await recorder.close(closing(number, finished=time.time()))
                tell(closed=number)
            case "state":
                tell(**recorder.state())
            case "stop":
                recorder.stop()
                tell(stopped=True)

    tell(ready=True)
    while line := await reader.readline():
        task = asyncio.create_task(obey(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(_serve())
