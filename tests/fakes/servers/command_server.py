"""Management commands, each in a fork of one process that has imported Django.

Importing takes a second, a fork some milliseconds. Run as a program, this module is the process: it
reads one request in each line, forks a child that runs the command as ``manage.py`` does, and prints
the child's exit code. The child ends as any Python process does.

The commands of a running gateway share its settings, so the process has read them. A test of the
settings gives each command an environment of its own; the process has then imported only modules that
need no settings, which is half of the work.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

REPOSITORY = Path(__file__).parents[3]
WITHOUT_SETTINGS: Final = "without-settings"
NEED_NO_SETTINGS: Final = (
    "daphne.server",  # before all others: it chooses the reactor of Twisted
    "autobahn.twisted.websocket",
    "django.contrib.admin",
    "django.contrib.postgres.fields",
    "django.core.asgi",
    "django.core.management",
    "django.db.backends.sqlite3.base",
    "django.template.defaultfilters",
    "httpx",
    "markdown_it",
    "requests",
    "rest_framework.serializers",
    "rich.console",
    "translator.translate",
    "unfold",
    "uvicorn",
    "yaml",
)
"""Modules that the gateway imports and that take long."""


class Finished(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


class CommandServer:
    """The process for one environment, or (None) for commands that bring theirs; ``close`` ends it."""

    def __init__(self, environment: Mapping[str, str] | None) -> None:
        mode = [WITHOUT_SETTINGS] if environment is None else []
        self.environment = dict(os.environ if environment is None else environment)
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - ``close`` closes the file
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "tests.fakes.servers.command_server", *mode],
            cwd=REPOSITORY, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True,
        )  # fmt: skip

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Finished:
        """Run ``manage.py`` with these arguments.

        ``environment`` replaces all variables. It has an effect on a server without settings; another
        one has read the settings at its start.
        """
        assert self._process.stdin
        assert self._process.stdout
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, name) for name in ("stdout", "stderr")]
            request = {
                "outputs": [str(path) for path in outputs],
                "arguments": arguments,
                "environment": None if environment is None else dict(environment),
            }
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            code = self._process.stdout.readline()
            assert code, f"the command server has ended:\n{self._read_errors()}"
            return Finished(int(code), *(path.read_text("utf-8") for path in outputs))

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._errors.close()

    def _read_errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()


@functools.cache
def commands_without_settings() -> CommandServer:
    """Return the server without settings of this process of pytest, and end it at the exit."""
    server = CommandServer(None)
    atexit.register(server.close)
    return server


def fork_for_each_request() -> dict[str, Any]:
    """Return a request in the child that runs it; at the end of the input exit."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            request: dict[str, Any] = json.loads(line)
            return request
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - this is the response
    sys.exit()


def redirect(descriptor: int, path: str, flags: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


def import_all() -> None:
    """Import what a command of the gateway imports, with the settings of this environment."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
    import django

    django.setup()
    importlib.import_module("bridge_project.urls")  # which every command checks
    importlib.import_module("proxy.management.rich_output")


def import_without_settings() -> None:
    from django.conf import settings

    for name in NEED_NO_SETTINGS:
        importlib.import_module(name)
    assert not settings.configured


def run_program() -> None:
    from bridge_project.command import main

    import_without_settings() if sys.argv[1:] == [WITHOUT_SETTINGS] else import_all()
    gc.freeze()  # a collection in a child would copy the memory of all these modules
    request = fork_for_each_request()
    stdout, stderr = request["outputs"]
    redirect(0, os.devnull, os.O_RDONLY)
    redirect(1, stdout, os.O_WRONLY | os.O_CREAT)
    redirect(2, stderr, os.O_WRONLY | os.O_CREAT)
    if request["environment"] is not None:
        os.environ.clear()
        os.environ.update(request["environment"])
    sys.argv = ["manage.py", *request["arguments"]]
    main()


if __name__ == "__main__":
    run_program()
