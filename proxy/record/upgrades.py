"""What a migration leaves to do for the code of today, which needs the schema of today."""

import pkgutil
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.recorder import MigrationRecorder

from proxy import migrations
from proxy.models import DayWho

from . import rollups

ALL: Final = frozenset(module.name for module in pkgutil.iter_modules(migrations.__path__))


def fill_sums(using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    """After each migration: rows that no sum knows are added up (tables of 0004 begin empty).

    A row and its sums are written together, so this finds nothing but what an upgrade has left,
    also where that was interrupted.
    """
    if using != DEFAULT_DB_ALIAS or not _is_whole():
        return
    if not DayWho.objects.exists() and (range_ := rollups.recorded()) is not None:
        rollups.rebuild(*range_)


def _is_whole() -> bool:
    """False while an operator stops at an earlier migration."""
    applied = MigrationRecorder(connections[DEFAULT_DB_ALIAS]).applied_migrations()
    return {name for app, name in applied if app == "proxy"} >= ALL
