"""Management commands of a running gateway, each in a fork of one process that has imported Django.

Importing takes a second, a fork some milliseconds. Run as a program, this module is the process: it
reads one request in each line, forks a child that runs the command as ``manage.py`` does, and prints
the child's exit code. The child ends as any Python process does.
"""

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[3]


class Finished(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


class CommandServer:
    """The process for one environment; ``close`` ends it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - ``close`` closes the file
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.servers.command_server"],
            cwd=REPOSITORY, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True,
        )  # fmt: skip

    def run(self, *arguments: str) -> Finished:
        """Run ``manage.py`` with these arguments; it reads the settings of the first command."""
        assert self._process.stdin
        assert self._process.stdout
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, name) for name in ("stdout", "stderr")]
            request = [*map(str, outputs), *arguments]
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


def fork_for_each_request() -> list[str]:
    """Return a request in the child that runs it; at the end of the input exit."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return [str(each) for each in json.loads(line)]
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - this is the response
    sys.exit()


def redirect(descriptor: int, path: str, flags: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


def run_program() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
    import django

    from bridge_project.command import main

    django.setup()
    importlib.import_module("bridge_project.urls")  # which every command checks
    importlib.import_module("proxy.management.rich_output")
    gc.freeze()  # a collection in a child would copy the memory of all these modules
    stdout, stderr, *arguments = fork_for_each_request()
    redirect(0, os.devnull, os.O_RDONLY)
    redirect(1, stdout, os.O_WRONLY | os.O_CREAT)
    redirect(2, stderr, os.O_WRONLY | os.O_CREAT)
    sys.argv = ["manage.py", *arguments]
    main()


if __name__ == "__main__":
    run_program()
