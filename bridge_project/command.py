"""Entry point of all commands: ``manage.py`` in a checkout, ``messages-bridge`` when installed."""

import gc
import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bridge_project.settings")
    if sys.argv[1:2] == ["serve"]:
        # Objects created at startup live until the process ends, so collecting garbage there is
        # useless and takes a tenth of the startup time. The garbage collector is enabled after
        # startup, in proxy/gateway/endpoints/lifespan.py or server.run.
        gc.disable()
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        # Print one line for a wrong setting instead of a traceback.
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
