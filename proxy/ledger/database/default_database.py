"""Use another database as the default one for some time.

The code of the ledger uses Django's default database. So a command can prepare, fill and verify a
second database with the same code.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.contrib.contenttypes.models import ContentType
from django.db import DEFAULT_DB_ALIAS, connections

ORIGINAL: Final = "original"
"""The alias of the database that was the default one before the ``with`` block."""


@contextlib.contextmanager
def default_database(settings: Mapping[str, Any]) -> Iterator[None]:
    """Make the database with these settings the default one inside the ``with`` block.

    The database that was the default one has the alias ``ORIGINAL`` in the block. Open connections
    of this thread are closed; no other thread may use the database meanwhile.
    """
    known = connections.settings
    original = known[DEFAULT_DB_ALIAS]
    _switch({DEFAULT_DB_ALIAS: dict(settings), ORIGINAL: original})
    try:
        yield
    finally:
        _switch({DEFAULT_DB_ALIAS: original})
        del known[ORIGINAL], connections[ORIGINAL]


def _switch(databases: dict[str, dict[str, Any]]) -> None:
    """Close all connections, and let the next ones use these settings."""
    connections.close_all()
    for alias, settings in connections.configure_settings(databases).items():
        connections.settings[alias] = settings
        connections[alias] = connections.create_connection(alias)
    ContentType.objects.clear_cache()  # the databases may have other ids
