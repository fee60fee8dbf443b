"""The real gateway as a process of its own: ``manage.py serve`` on a loopback port.

Nothing of it is imported or patched; a test sees what an operator and a client see.
"""

import contextlib
import http.client
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

REPOSITORY = Path(__file__).parents[2]
KEY = "sk-br-" + "e2e0" * 12
"""The gateway key of the tests; it reaches the process through the environment."""


class Reply(NamedTuple):
    """A whole HTTP answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def toml_for(upstreams: Mapping[str, Mapping[str, Any]], routes: str) -> str:
    """A bridge.toml: named upstreams (dialect, base_url and what else), then routes as TOML."""
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
    config: str | None = None  # bridge.toml; None: first contact, without any configuration
    environment: dict[str, str] = field(default_factory=dict)
    key: str = KEY
    port: int = 0
    workers: int = 1
    ready_within_s: float = 120
    cwd: Path = REPOSITORY
    starts_with: int = 200  # what /readyz says then
    open_files: int | None = None  # its limit of file descriptors; it starts with half of that

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """Everything the process has printed so far."""
        return self._log_path.read_text(encoding="utf-8", errors="replace")

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
        """Start the process and wait until it says that it is ready."""
        command = self._command()
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own command line
                command,
                cwd=self.cwd,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its workers die with it, and nothing else does
            )
        if self.open_files is not None:  # Python has not started yet: none of ours is open
            limits = (self.open_files // 2, self.open_files)
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, limits)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _command(self) -> list[str]:
        command = [sys.executable, str(REPOSITORY / "manage.py"), "serve"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--workers", str(self.workers)]
        if self.config is not None:
            (self.folder / "bridge.toml").write_text(self.config, encoding="utf-8")
            command += ["--config", str(self.folder / "bridge.toml")]
        return command

    def stop(self, how: signal.Signals = signal.SIGTERM, *, within_s: float = 60) -> int:
        """End the process (and its workers) and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(within_s)
            raise AssertionError(f"the gateway did not stop; it said:\n{self.log}") from None

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        authorised: bool = True,
    ) -> Reply:
        """One plain HTTP exchange."""
        told = {"x-api-key": self.key} if authorised else {}
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        ) as connection:
            connection.request(method, path, body=body, headers=told | dict(headers or {}))
            with connection.getresponse() as answer:
                named = {name.lower(): value for name, value in answer.getheaders()}
                return Reply(answer.status, named, answer.read())

    def manage(self, *arguments: str) -> str:
        """Run another command of ``manage.py`` on the same data directory; what it printed."""
        ended = subprocess.run(  # noqa: S603 - our own command line
            [sys.executable, str(REPOSITORY / "manage.py"), *arguments],
            cwd=REPOSITORY,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, f"{arguments} failed:\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    def rows(self) -> dict[str, dict[str, Any]]:
        """The ledger as ``exportledger`` tells it, by the request id that the client saw."""
        lines = self.manage("exportledger", "--format", "ndjson", "--open").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
        by_id = {row["id"]: row for row in rows}
        assert len(by_id) == len(rows), "a request has two rows"
        return by_id

    def closed_rows(self, *ids: str, within_s: float = 90) -> dict[str, dict[str, Any]]:
        """The ledger as soon as the rows of these requests are in it and closed."""
        deadline = time.monotonic() + within_s
        while True:
            rows = self.rows()
            if all(rows.get(each, {}).get("outcome") not in {None, "open"} for each in ids):
                return rows
            assert time.monotonic() < deadline, [rows.get(each) for each in ids]
            time.sleep(0.2)

    def _environment(self) -> dict[str, str]:
        kept = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")
        inherited = {name: os.environ[name] for name in kept if name in os.environ}
        return {
            **inherited,
            "BRIDGE_DATA_DIR": str(self.folder / "data"),
            "BRIDGE_KEY_E2E": self.key,
            "E2E_UPSTREAM_KEY": "sk-upstream-of-the-tests",
            "PYTHONUNBUFFERED": "1",
            # A busy machine must not end a test of something else.
            "BRIDGE_SHED_LAG_S": "3600",
            "BRIDGE_REDIS_TIMEOUT_S": "5",
            **self.environment,
        }

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.ready_within_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"serve ended with code {self.process.returncode}; it said:\n{self.log}"
                )
            # Port 0 lets the system choose; the log tells which one it was.
            if not self.port and (told := re.search(r"listens on http://[^\s:]+:(\d+)", self.log)):
                self.port = int(told[1])
            with contextlib.suppress(OSError, http.client.HTTPException):  # not listening yet
                if self.port and self.ask("GET", "/readyz").status == self.starts_with:
                    return
            time.sleep(0.05)
        raise AssertionError(f"not ready within {self.ready_within_s} s; it said:\n{self.log}")
