"""Read the database's user and password again from the file that ``DATABASE_URL_FILE`` names.

Database credentials may be valid for a few hours only. Open connections stay open; new connections
of all threads use the new credentials. A changed host, port or database name needs a restart.
"""

import logging
import os
from typing import Final

import dj_database_url
from django.db import DEFAULT_DB_ALIAS, connections

from proxy.secrets import SECRET_FILES, ConfigError

log = logging.getLogger("proxy.ledger")

FILE: Final = "DATABASE_URL_FILE"
RENEWED: Final = ("USER", "PASSWORD")


def renew() -> None:
    """Update user and password from the file; an unreadable file changes nothing.

    The call blocks: do not call it in the event loop.
    """
    path = os.environ.get(FILE)
    if path is None:
        return
    try:
        parsed = dj_database_url.parse(SECRET_FILES.read(path))
    except (ConfigError, ValueError):  # ConfigError is logged by SECRET_FILES
        return
    # The connections of all threads share these settings.
    settings = connections.settings[DEFAULT_DB_ALIAS]
    newer = {name: parsed[name] for name in RENEWED if parsed[name] != settings[name]}
    if newer and parsed["ENGINE"] == settings["ENGINE"]:
        settings.update(newer)
        log.info("the database's credentials were updated from %s", FILE)
