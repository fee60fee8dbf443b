"""Run the recorder as a separate process that a test can kill.

The process reads a JSON command from each line: {"do": "open", "id": ...}, "chunk", "close", "state",
"stop". It writes a line when a command is done: for open and close when the record is durable.
"""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from tests.fakes.forked_python import ForkedProcess, python_with_libraries
from tests.fakes.servers.command_server import Finished, commands_without_settings
from tests.fakes.servers.prepared import copy_ledger

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = "tests.proxy.ledger.settings"


class Driver:
    """A recorder process with its own data directory.

    The database is a SQLite file of the data directory by default; another one has the schema.
    """

    def __init__(self, directory: Path, database_url: str = "") -> None:
        self.directory = directory
        if not directory.exists():
            copy_ledger(directory)
        self.database = directory / "ledger.sqlite3"
        self.environment = {
            **os.environ,
            "BRIDGE_SECRET_KEY": "0123456789abcdefghijklmnopqrstuvwxyz" * 2,  # signs the hash chain
            "BRIDGE_DATA_DIR": str(directory),
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "PYTHONPATH": str(ROOT),
        }
        self.environment.pop("DATABASE_URL", None)
        if database_url:
            self.environment["DATABASE_URL"] = database_url
        self.child: ForkedProcess | None = None
        self._input: TextIO | None = None
        self._output: TextIO | None = None

    def manage(self, *arguments: str, exit_code: int = 0) -> Finished:
        """Run a command on this data directory; check its exit code."""
        done = commands_without_settings().run(*arguments, environment=self.environment)
        assert done.returncode == exit_code, done
        return done

    def start(self) -> None:
        (stdin, writes), (reads, stdout) = os.pipe(), os.pipe()
        self.child = python_with_libraries().start(
            "-m", __name__, environment=self.environment, stdin=stdin, stdout=stdout, stderr=2
        )
        os.close(stdin)
        os.close(stdout)
        self._input = os.fdopen(writes, "w", encoding="utf-8")
        self._output = os.fdopen(reads, encoding="utf-8")
        assert self.read() == {"ready": True}

    def send(self, **command: Any) -> None:
        assert self._input
        self._input.write(json.dumps(command) + "\n")
        self._input.flush()

    def read(self) -> Any:
        assert self._output
        line = self._output.readline()
        return json.loads(line) if line.endswith("\n") else None

    def request(self, **command: Any) -> Any:
        self.send(**command)
        return self.read()

    def kill(self) -> list[Any]:
        """Kill the process with SIGKILL; return the responses that it had written."""
        assert self.child
        assert self._output
        self.child.send_signal(signal.SIGKILL)
        lines = self._output.read().splitlines(keepends=True)
        self.child.wait()
        self._close_pipes()
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def end(self) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._input, self._output):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.database, timeout=20) as link:
            rows = link.execute(sql, parameters).fetchall()
        link.close()
        return rows


async def _serve() -> None:
    import django

    django.setup()
    from proxy.ledger.errors import JournalUnavailable
    from proxy.ledger.journal.records import Chunk
    from proxy.ledger.recorder import recorder

    from .factories import closing, opening

    recorder.start()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = set()

    def respond(**response: Any) -> None:
        sys.stdout.write(json.dumps(response) + "\n")
        sys.stdout.flush()

    async def execute(command: dict[str, Any]) -> None:
        number = command.get("id", 0)
        match command["do"]:
            case "open":
                try:
                    fields = command.get("fields", {})
                    await recorder.open(opening(number, created=time.time(), **fields))
                    respond(opened=number)
                except JournalUnavailable as exc:
                    respond(refused=number, why=str(exc))
            case "chunk":
                reads = [(ms, text.encode()) for ms, text in command["reads"]]
                recorder.chunk(Chunk(id=opening(number).id, reads=reads))
            case "close":
                await recorder.close(closing(number, finished=time.time()))
                respond(closed=number)
            case "state":
                respond(**recorder.state())
            case "stop":
                recorder.stop()
                respond(stopped=True)

    respond(ready=True)
    while line := await reader.readline():
        task = asyncio.create_task(execute(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(_serve())
