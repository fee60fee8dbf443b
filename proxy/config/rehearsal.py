"""What a dry run needs, and leaves behind nowhere: no directory, no key, no table."""

from typing import Final

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from proxy.record.errors import SchemaMismatch
from proxy.record.schema import check_schema
from proxy.secrets import ConfigError, has_root, new_root

from .arrival import is_new
from .first_start import migrate

IN_MEMORY: Final = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}


def prepare() -> None:
    """Make ready to apply a file and roll back. Raises ConfigError for a schema that is not ours.

    Where there is no database yet, an empty one in memory stands for it, for this process.
    """
    if not has_root():
        settings.SECRET_KEY = new_root()
    if is_new():
        connections.settings[DEFAULT_DB_ALIAS] |= IN_MEMORY
        del connections[DEFAULT_DB_ALIAS]
        migrate()
        return
    try:
        check_schema()
    except SchemaMismatch as mismatch:
        raise ConfigError(f"{mismatch}; a dry run does not migrate") from None
