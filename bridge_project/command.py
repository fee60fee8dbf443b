"""Every command: ``manage.py serve`` here, ``messages-bridge serve`` where it is installed."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as mistake:  # a setting is wrong: one line that names it
        sys.stderr.write(f"error: {mistake}\n")
        sys.exit(2)
