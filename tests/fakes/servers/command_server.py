"""Management commands, each in a fork of a process that has imported Django (``forked_python``).

The commands of a running gateway share its settings, so their process has read them. A test of the
settings gives each command an environment of its own; the process has then imported only modules that
need no settings.
"""

import functools
import importlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.fakes.forked_python import REPOSITORY, PreparedPython, python_with_libraries

MANAGE: Final = str(REPOSITORY / "manage.py")


class Finished(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


class CommandServer:
    """The process for one environment, or (None) for commands that bring theirs; ``close`` ends it."""

    def __init__(self, environment: Mapping[str, str] | None) -> None:
        self.environment = environment
        self._python = (
            _python_with_daphne()
            if environment is None
            else _python_with_daphne().prepare(f"{__name__}:import_all", environment)
        )

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Finished:
        """Run ``manage.py`` with these arguments.

        ``environment`` replaces all variables. It has an effect on a server without settings; another
        one has read the settings at its start.
        """
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, name) for name in ("stdout", "stderr")]
            with outputs[0].open("wb") as stdout, outputs[1].open("wb") as stderr:
                process = self._python.start(
                    MANAGE,
                    *arguments,
                    environment=environment,
                    stdout=stdout.fileno(),
                    stderr=stderr.fileno(),
                )
            return Finished(process.wait(300), *(path.read_text("utf-8") for path in outputs))

    def close(self) -> None:
        if self.environment is not None:
            self._python.close()


@functools.cache
def commands_without_settings() -> CommandServer:
    """Return the server without settings of this process of pytest."""
    return CommandServer(None)


@functools.cache
def _python_with_daphne() -> PreparedPython:
    return python_with_libraries().prepare(f"{__name__}:import_daphne")


def import_daphne() -> None:
    """Import the server that all commands except ``serve`` install; it needs no settings."""
    importlib.import_module("daphne.server")  # before its WebSockets: it chooses Twisted's reactor
    importlib.import_module("autobahn.twisted.websocket")


def import_all() -> None:
    """Import what a command of the gateway imports, with the settings of this environment."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
    import django

    django.setup()
    importlib.import_module("bridge_project.urls")  # which every command checks
    importlib.import_module("proxy.management.rich_output")
