"""The gateway as a separate process: ``manage.py serve`` on a loopback port.

No code of the gateway is patched. Tests use only what operators and clients can use. The process is
a fork of one that has imported the libraries (``forked_python``); tests/proxy/server starts new ones.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.fakes.forked_python import REPOSITORY, ForkedProcess, python_with_libraries

from .command_server import CommandServer, Finished, commands_without_settings
from .prepared import copy_ledger

KEY = "sk-br-" + "e2e0" * 12
"""The gateway key of the tests; the process receives it in the environment."""


class Reply(NamedTuple):
    """A complete HTTP response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def toml_for(upstreams: Mapping[str, Mapping[str, Any]], routes: str) -> str:
    """Build a bridge.toml from named upstreams (dialect, base_url, other fields) and routes as TOML."""
    lines = []
    for name, fields in upstreams.items():
        lines += ["[[upstreams]]", f'name = "{name}"']
        lines += [f"{field} = {_toml(value)}" for field, value in fields.items()]
        lines += ['api_key = { env = "E2E_UPSTREAM_KEY" }', ""]
    return "\n".join(lines) + routes + TEAM


TEAM = """
[[teams]]
name = "e2e"
models = ["*"]

[[keys]]
team = "e2e"
name = "tests"
scopes = ["messages", "reports", "admin"]
secret = { env = "BRIDGE_KEY_E2E" }
"""


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else str(value)


@dataclass
class Gateway:
    """One running gateway; use it as a context manager."""

    folder: Path
    config: str | None = None  # the text of bridge.toml; None: start without a configuration file
    environment: dict[str, str] = field(default_factory=dict)
    key: str = KEY
    port: int = 0
    workers: int = 1
    ready_within_s: float = 120
    cwd: Path = REPOSITORY
    ready_status: int = 200  # the status of /readyz when the gateway has started
    migrated: bool = True  # start with a ledger that has the schema; False: test the first start
    with_admin: bool = True  # False: the start creates the admin user
    open_files: int | None = None  # hard limit of file descriptors; the soft limit is half of it
    process: "subprocess.Popen[bytes] | ForkedProcess | None" = None
    _commands: CommandServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """The output of the process so far."""
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    @property
    def cpu_s(self) -> float:
        """The CPU seconds of the process so far, without its workers."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii")
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def _log_path(self) -> Path:
        return self.folder / "serve.log"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process and wait until /readyz has the status ``ready_status``."""
        data = self.folder / "data"
        if self.migrated and "DATABASE_URL" not in self.environment and not data.exists():
            copy_ledger(data, with_admin=self.with_admin)
        with self._log_path.open("ab") as log:
            self.process = self._start_process(log.fileno())
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _start_process(self, log: int) -> "subprocess.Popen[bytes] | ForkedProcess":
        command = self.command_line()
        read_at_start = any(name.startswith("PYTHON") for name in self.environment)
        if command[0] != sys.executable or read_at_start:
            return subprocess.Popen(  # noqa: S603 - the test wrote this command
                command, cwd=self.cwd, env=self.environment_variables(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        limit = self.open_files
        return python_with_libraries().start(
            *command[1:],
            cwd=self.cwd,
            environment=self.environment_variables(),
            stdout=log,
            stderr=log,
            open_files=None if limit is None else (limit // 2, limit),
        )

    def command_line(self) -> list[str]:
        command = [sys.executable, str(REPOSITORY / "manage.py"), "serve"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--workers", str(self.workers)]
        if self.config is not None:
            (self.folder / "bridge.toml").write_text(self.config, encoding="utf-8")
            command += ["--config", str(self.folder / "bridge.toml")]
        return command

    def stop(self, how: signal.Signals = signal.SIGTERM, *, within_s: float = 60) -> int:
        """End the process (and its workers) and its commands; return the exit code."""
        self._end_commands()
        return self.end_process(how, within_s=within_s)

    def end_process(self, how: signal.Signals = signal.SIGTERM, *, within_s: float = 60) -> int:
        """End the process only, so that further commands and the next start share theirs."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(within_s)
            raise AssertionError(f"the gateway did not stop; its log:\n{self.log}") from None

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        authorized: bool = True,
    ) -> Reply:
        """Send one HTTP request and return the complete response."""
        headers_to_send = {"x-api-key": self.key} if authorized else {}
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        ) as connection:
            connection.request(
                method, path, body=body, headers=headers_to_send | dict(headers or {})
            )
            with connection.getresponse() as answer:
                response_headers = {name.lower(): value for name, value in answer.getheaders()}
                return Reply(answer.status, response_headers, answer.read())

    def manage(self, *arguments: str) -> str:
        """Run a ``manage.py`` command on the same data directory; return its standard output."""
        result = self.run_command(*arguments)
        assert result.returncode == 0, f"{arguments} failed:\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def run_command(self, *arguments: str, **environment: str) -> Finished:
        """Run a command that may end with any exit code.

        While the gateway runs, and after ``end_process``, its commands share a process that has read
        the settings (see ``command_server``).
        """
        is_running = self.process is not None and self.process.poll() is None
        if not environment and (is_running or self._commands):
            return self._command_server().run(*arguments)
        own = {**self.environment_variables(), **environment}
        return commands_without_settings().run(*arguments, environment=own)

    def _command_server(self) -> CommandServer:
        if self._commands and self._commands.environment != self.environment_variables():
            self._end_commands()
        self._commands = self._commands or CommandServer(self.environment_variables())
        return self._commands

    def _end_commands(self) -> None:
        if self._commands:
            self._commands.close()
            self._commands = None

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the ledger's rows from ``exportledger``, by request id."""
        lines = self.manage("exportledger", "--format", "ndjson", "--open").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
        by_id = {row["id"]: row for row in rows}
        assert len(by_id) == len(rows), "a request has two rows"
        return by_id

    def closed_rows(self, *ids: str, within_s: float = 90) -> dict[str, dict[str, Any]]:
        """Wait until the ledger has closed rows for these requests; return all rows."""
        deadline = time.monotonic() + within_s
        while True:
            rows = self.rows()
            if all(rows.get(each, {}).get("outcome") not in {None, "open"} for each in ids):
                return rows
            assert time.monotonic() < deadline, [rows.get(each) for each in ids]
            time.sleep(0.2)

    def environment_variables(self) -> dict[str, str]:
        names = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")
        inherited = {name: os.environ[name] for name in names if name in os.environ}
        return {
            **inherited,
            "BRIDGE_DATA_DIR": str(self.folder / "data"),
            "BRIDGE_KEY_E2E": self.key,
            "E2E_UPSTREAM_KEY": "sk-upstream-of-the-tests",
            "PYTHONUNBUFFERED": "1",
            # Load on the test machine must not cause load shedding.
            "BRIDGE_SHED_LAG_S": "3600",
            "BRIDGE_REDIS_TIMEOUT_S": "5",
            **self.environment,
        }

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.ready_within_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"serve ended with code {self.process.returncode}; its log:\n{self.log}"
                )
            # With port 0 the system chooses the port; the log names it.
            if not self.port and (match := re.search(r"listens on http://[^\s:]+:(\d+)", self.log)):
                self.port = int(match[1])
            with contextlib.suppress(OSError, http.client.HTTPException):  # not listening yet
                if (
                    self.port
                    and self.request("GET", "/readyz").status == self.ready_status
                    and self._all_workers_have_started()
                ):
                    return
            time.sleep(0.05)
        raise AssertionError(f"not ready within {self.ready_within_s} s; its log:\n{self.log}")

    def _all_workers_have_started(self) -> bool:
        """Return whether each worker has taken a journal, which it does after it has read the
        configuration. At a restart the lock files exist already, and nothing is waited for.
        """
        if self.workers == 1:
            return True
        data = Path(self.environment_variables()["BRIDGE_DATA_DIR"])
        return len([*data.glob("journal-*.lock")]) >= self.workers
