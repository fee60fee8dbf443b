"""What our commands share: an example under ``--help``, and exit 2 for a wrong configuration."""

import os
import signal
import sys
from argparse import RawDescriptionHelpFormatter
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser, SystemCheckError
from django.db import DatabaseError

from proxy.secrets import ConfigError

FINDING = 1
MISUSE = 2


class BridgeCommand(BaseCommand):
    """A command that ends with 0 (fine), 1 (a finding) or 2 (misuse); errors are one clear line."""

    example: ClassVar[str]

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs["epilog"] = f"example:\n  {self.example}"
        kwargs["formatter_class"] = RawDescriptionHelpFormatter
        return super().create_parser(prog_name, subcommand, **kwargs)

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except ConfigError as mistake:
            raise CommandError(str(mistake), returncode=MISUSE) from None
        except SystemCheckError as found:
            raise CommandError(str(found), returncode=MISUSE) from None
        except BrokenPipeError:  # ``| head`` has seen enough
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # for Python's last flush
            raise SystemExit(128 + signal.SIGPIPE) from None
        except DatabaseError as error:
            cause = str(error).strip().splitlines()[0]
            hint = "does DATABASE_URL lead to it, and has serve or migrate made its tables?"
            raise CommandError(f"the database says: {cause}; {hint}", returncode=MISUSE) from None
