"""Prepare a dry run of the command ``applyconfig``, which creates no file, secret key or table."""

from typing import Final

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from proxy.ledger.database.schema_check import check_migratable, check_schema
from proxy.ledger.errors import SchemaMismatch
from proxy.secrets import ConfigError, has_root, new_root

from .first_start import migrate
from .wait_for_database import is_new

IN_MEMORY: Final = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}


def prepare() -> None:
    """Prepare this process to apply a configuration file and roll the transaction back.

    If there is no database yet, the process uses an empty database in memory. Raises ConfigError if
    the schema of the database is that of another version.
    """
    if not has_root():
        settings.SECRET_KEY = new_root()
    if is_new():
        connections.settings[DEFAULT_DB_ALIAS] |= IN_MEMORY
        del connections[DEFAULT_DB_ALIAS]
        migrate()
        return
    try:
        check_migratable()
    except SchemaMismatch as mismatch:
        raise ConfigError(str(mismatch)) from None
    try:
        check_schema()
    except SchemaMismatch as mismatch:
        raise ConfigError(f"{mismatch}; a dry run does not migrate") from None
