"""Raise SchemaMismatch for a database whose schema does not match this version.

The command ``serve`` checks before it migrates, because it must not migrate a newer or inconsistent
schema, and again afterwards. Each worker process also checks when it starts, because with another
ASGI server the command ``serve`` does not run.
"""

import os
import pkgutil
from collections.abc import Set as AbstractSet
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections

from proxy.ledger.errors import SchemaMismatch
from proxy.models import CopiedTable

if TYPE_CHECKING:
    from django.db.migrations.executor import MigrationExecutor

APP: Final = "proxy"
"""The app whose applied migrations must all exist in the code. Other apps come from installed
packages, so their unknown migrations raise no SchemaMismatch."""
BEFORE_1_0: Final = "0002_budget_notices"
"""A migration that all development versions before 1.0 have, and no release."""
MIGRATION_PENDING: Final = "MESSAGES_BRIDGE_MIGRATION_PENDING"
"""This environment variable is set while the command ``serve`` waits for the database. It will
migrate and check the database, and end the gateway after an error. Until then a worker process must
not end because of missing migrations. (``serve`` refuses an unknown name that begins with BRIDGE_.)
"""


def migrations_on_disk() -> AbstractSet[tuple[str, str]]:
    """Return the app label and name of each installed migration, without importing migrations."""
    found = set()
    for app in apps.get_app_configs():
        package = find_spec(f"{app.name}.migrations")
        for module in pkgutil.iter_modules(package.submodule_search_locations if package else ()):
            if module.name[0] not in "_~":  # django's loader has the same rule
                found.add((app.label, module.name))
    return found


def check_schema(alias: str = DEFAULT_DB_ALIAS) -> None:
    """Raise SchemaMismatch if this version cannot use the database; call this before serving.

    The applied migrations must be those of this version, and the database no unfinished copy.
    """
    check_migrations(alias)
    if CopiedTable.objects.using(alias).exists():
        raise SchemaMismatch(
            "the database is an unfinished copy of another one; run manage.py copyledger again, "
            "with the DATABASE_URL of the original"
        )


def is_migration_pending() -> bool:
    """Return whether the command ``serve`` will migrate and check the database later."""
    return MIGRATION_PENDING in os.environ


def check_migrations(alias: str = DEFAULT_DB_ALIAS) -> None:
    """Raise SchemaMismatch if the applied migrations are not those of this version.

    The message names a migration and what to do.
    """
    if has_all_migrations(alias):
        return  # equal sets need no consistency check, which would import all migrations
    executor = _checked_executor(alias)
    missing = [
        f"{migration.app_label}.{migration.name}"
        for migration, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())
    ]
    if missing:
        count = "1 migration" if len(missing) == 1 else f"{len(missing)} migrations"
        raise SchemaMismatch(
            f"the database lacks {count}, the first is {missing[0]}; "
            "run manage.py migrate with this version"
        )


def has_all_migrations(alias: str = DEFAULT_DB_ALIAS) -> bool:
    """Return whether the applied migrations are exactly those of this version."""
    return _applied(alias) == migrations_on_disk()


def check_migratable(alias: str = DEFAULT_DB_ALIAS) -> None:
    """Raise SchemaMismatch for a newer or inconsistent schema, which ``migrate`` cannot repair."""
    if _applied(alias):
        _checked_executor(alias)


def _applied(alias: str) -> AbstractSet[tuple[str, str]]:
    from django.db.migrations.recorder import MigrationRecorder  # noqa: PLC0415 - on demand

    return MigrationRecorder(connections[alias]).applied_migrations().keys()


def _checked_executor(alias: str) -> "MigrationExecutor":
    from django.db.migrations.exceptions import (  # noqa: PLC0415 - on demand
        InconsistentMigrationHistory,
    )
    from django.db.migrations.executor import MigrationExecutor  # noqa: PLC0415 - on demand

    connection = connections[alias]
    executor = MigrationExecutor(connection)
    known = set(executor.loader.disk_migrations or ())
    unknown = sorted(
        name
        for app, name in executor.loader.applied_migrations
        if app == APP and (app, name) not in known
    )
    if BEFORE_1_0 in unknown:
        raise SchemaMismatch(
            f"the database has the migration {APP}.{BEFORE_1_0}: a development version before 1.0 "
            "made it, and it cannot be upgraded; move the data directory (BRIDGE_DATA_DIR) away "
            "and, with PostgreSQL, set DATABASE_URL to an empty database, then start again"
        )
    if unknown:
        raise SchemaMismatch(
            f"the database has the migration {APP}.{unknown[-1]}, which this version does not "
            "know; install the version that made it, or one after it"
        )
    try:
        executor.loader.check_consistent_history(connection)
    except InconsistentMigrationHistory as gap:
        raise SchemaMismatch(
            f"the database is half migrated: {gap}; restore it from a backup"
        ) from None
    return executor
