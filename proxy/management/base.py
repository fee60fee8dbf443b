"""Base class of the management commands: an example in ``--help``, and exit statuses."""

import os
import re
import signal
import sys
from argparse import RawDescriptionHelpFormatter
from importlib.metadata import version
from typing import Any, ClassVar, Final

import msgspec
from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
    OutputWrapper,
    SystemCheckError,
)
from django.db import DatabaseError

from proxy.audit_log import acting_as, actor_of_command
from proxy.ledger.archive.files import ArchiveError
from proxy.ledger.transcripts.visible_text import show_invisible
from proxy.models.audit import MAX_REASON
from proxy.permissions.readings import MIN_REASON, ReasonRequired
from proxy.secrets import ConfigError

FINDING = 1
MISUSE = 2
STYLE: Final = re.compile("(\x1b\\[[0-9;]*m)")
"""The color codes of tables and messages."""


COMMON: Final = "options of every command"


class HelpFormatter(RawDescriptionHelpFormatter, DjangoHelpFormatter):
    """Keep the lines of the example, and list Django's common options last in the usage."""


class VisibleOutput(OutputWrapper):
    """The output of a command, in which invisible characters of names and texts are visible."""

    def write(self, msg: str = "", *args: Any, **options: Any) -> None:  # type: ignore[override]  # as in Django's class, whose stubs are narrower
        parts = STYLE.split(msg) if self.isatty() else [msg]
        parts[::2] = map(show_invisible, parts[::2])
        super().write("".join(parts), *args, **options)


class BridgeCommand(BaseCommand):
    """A command that exits with 0 (success), 1 (a problem was found) or 2 (misuse).

    It prints an error as one line, without a traceback. 2 is also for configuration and database
    errors.
    """

    example: ClassVar[str]
    _called_from_command_line = False  # set by Django

    def __init__(self, stdout: Any = None, stderr: Any = None, **options: Any) -> None:
        super().__init__(stdout, stderr, **options)
        self.stdout = VisibleOutput(stdout or sys.stdout)
        style = self.stderr.style_func
        self.stderr = VisibleOutput(stderr or sys.stderr)
        self.stderr.style_func = style

    def get_version(self) -> str:
        """Return the gateway's version for ``--version``, instead of Django's."""
        return version("messages-bridge")

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs["epilog"] = f"example:\n  {self.example}"
        kwargs["formatter_class"] = HelpFormatter
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        _group_common_options(parser)
        return parser

    def write_json(self, value: Any) -> None:
        self.stdout.write(msgspec.json.encode(value).decode())

    def add_reason_argument(self, parser: CommandParser) -> None:
        """Add ``--reason``, for a command that shows text of conversations."""
        text = "why you read this; required if BRIDGE_READING_NEEDS_REASON is 1"
        parser.add_argument("--reason", default="", help=text)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; from the command line, print an error as one line ``error: ...``."""
        try:
            return self._execute(*args, **options)
        except CommandError as error:
            if not self._called_from_command_line or options.get("traceback"):
                raise
            self.stderr.write(f"error: {error}")
            raise SystemExit(error.returncode) from None

    def _execute(self, *args: Any, **options: Any) -> str | None:
        if stdout := options.pop("stdout", None):
            self.stdout = VisibleOutput(stdout)
        try:
            with acting_as(actor_of_command(type(self).__module__.rpartition(".")[2])):
                return super().execute(*args, **options)
        except ReasonRequired:
            raise CommandError(
                "reading transcripts needs a reason: "
                f"give {MIN_REASON} to {MAX_REASON} characters with --reason",
                returncode=MISUSE,
            ) from None
        except (ConfigError, SystemCheckError) as error:
            raise CommandError(str(error), returncode=MISUSE) from None
        except BrokenPipeError:  # the process that reads stdout, such as ``| head``, has ended
            # At exit, Python flushes stdout, which would raise BrokenPipeError again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(128 + signal.SIGPIPE) from None
        except (ArchiveError, OSError) as error:
            raise CommandError(str(error), returncode=FINDING) from error
        except DatabaseError as error:
            cause = str(error).strip().splitlines()[0]
            hint = "check DATABASE_URL, and whether serve or migrate has created the tables"
            raise CommandError(f"database error: {cause}; {hint}", returncode=MISUSE) from None


def _group_common_options(parser: CommandParser) -> None:
    """Move the options of every command to a group of their own, which ``--help`` shows last."""
    group = parser.add_argument_group(COMMON)
    options = parser._optionals._group_actions  # noqa: SLF001 - argparse has no public way to move an option
    for action in list(options):
        if {"--help", *HelpFormatter.show_last}.intersection(action.option_strings):
            options.remove(action)
            group._group_actions.append(action)  # noqa: SLF001 - as above
