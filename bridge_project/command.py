"""Entry point of all commands: ``manage.py`` in a checkout, ``messages-bridge`` when installed."""

import gc
import os
import re
import sys
import textwrap
from importlib.metadata import version

from django.core.exceptions import ImproperlyConfigured
from django.core.management import ManagementUtility, get_commands, load_command_class

APP = "proxy"
OVERVIEW = """
Type '{program} help COMMAND' for the options of a command and an example.

The gateway:
{own}

Django and its packages:
{others}
"""


WINDOWS = "Messages Bridge does not run on Windows; use Linux, for example in WSL 2"


class Utility(ManagementUtility):
    """Django's command line, whose ``help`` lists the gateway's commands first."""

    def main_help_text(self, commands_only: bool = False) -> str:
        if commands_only or self.settings_exception is not None:
            return super().main_help_text(commands_only)
        commands = sorted(get_commands().items())
        own = [
            f"  {name:<19}{_first_sentence(load_command_class(app, name).help)}"
            for name, app in commands
            if app == APP
        ]
        others = ", ".join(name for name, app in commands if app != APP)
        wrapped = textwrap.fill(others, 76, initial_indent="  ", subsequent_indent="  ")
        return OVERVIEW.format(program=self.prog_name, own="\n".join(own), others=wrapped)


def _first_sentence(text: str) -> str:
    """Return the first part of a command's help, without its sentence about exit statuses."""
    return re.split(r"[;:.](?: |$)", text, maxsplit=1)[0]


def main() -> None:
    if sys.platform == "win32":  # its files have other locks, and its processes other signals
        sys.stderr.write(f"error: {WINDOWS}\n")
        sys.exit(2)
    if sys.argv[1:] in (["version"], ["--version"]):  # Django would print its own version
        sys.stdout.write(f"{version('messages-bridge')}\n")
        return
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
    if sys.argv[1:2] == ["serve"]:
        # Objects created at startup live until the process ends, so collecting garbage there is
        # useless and takes a tenth of the startup time. The garbage collector is enabled after
        # startup, in proxy/gateway/endpoints/lifespan.py or server.run.
        gc.disable()
    try:
        Utility(sys.argv).execute()
    except ImproperlyConfigured as error:
        # Print one line for a wrong setting instead of a traceback.
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
