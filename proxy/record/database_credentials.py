"""The database's user and password follow the file that ``DATABASE_URL_FILE`` names.

Credentials of a database may live for hours only. Connections that are open stay; all that are
made afterwards, in every thread, use the new ones. Another host, port or name needs a restart.
"""

import logging
import os
from typing import Final

import dj_database_url
from django.db import DEFAULT_DB_ALIAS, connections

from proxy.secrets import SECRET_FILES, ConfigError

log = logging.getLogger("proxy.record")

FILE: Final = "DATABASE_URL_FILE"
RENEWED: Final = ("USER", "PASSWORD")


def renew() -> None:
    """Read the file again, off the event loop. What cannot be read changes nothing."""
    path = os.environ.get(FILE)
    if path is None:
        return
    try:
        told = dj_database_url.parse(SECRET_FILES.read(path))
    except (ConfigError, ValueError):  # the first is logged where it is read
        return
    used = connections.settings[DEFAULT_DB_ALIAS]  # which the connections of all threads share
    newer = {name: told[name] for name in RENEWED if told[name] != used[name]}
    if newer and told["ENGINE"] == used["ENGINE"]:
        used.update(newer)
        log.info("the database's credentials are those that %s holds now", FILE)
