"""Every command: ``manage.py serve`` here, ``messages-bridge serve`` where it is installed."""

import gc
import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
    if sys.argv[1:2] == ["serve"]:
        # What a start makes stays, so a collector finds next to nothing in it, a tenth of its time.
        # It is enabled where the start ends: `settle_garbage`, or `serving.run`.
        gc.disable()
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as mistake:  # a setting is wrong: one line that names it
        sys.stderr.write(f"error: {mistake}\n")
        sys.exit(2)
