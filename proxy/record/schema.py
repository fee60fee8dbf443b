"""Refuses a database whose schema is not the one that this code was written for.

``serve`` asks before it migrates (nothing may touch a newer schema, or one with a hole in it) and
again afterwards; each worker asks when it starts, since another server may run it without serve.
"""

import pkgutil
from collections.abc import Set as AbstractSet
from importlib.util import find_spec
from typing import TYPE_CHECKING

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections

from .errors import SchemaMismatch

if TYPE_CHECKING:
    from django.db.migrations.executor import MigrationExecutor

OURS = (
    "proxy"  # the only app whose newer migrations we could not know; Django's come by its version
)


def migrations_on_disk() -> AbstractSet[tuple[str, str]]:
    """App and name of each migration that is installed. None of them is imported for it."""
    found = set()
    for app in apps.get_app_configs():
        package = find_spec(f"{app.name}.migrations")
        for module in pkgutil.iter_modules(package.submodule_search_locations if package else ()):
            if module.name[0] not in "_~":  # as Django reads them
                found.add((app.label, module.name))
    return found


def check_schema(alias: str = DEFAULT_DB_ALIAS) -> None:
    """Raises SchemaMismatch, naming the migration and what to do. Call it before serving."""
    if _applied(alias) == migrations_on_disk():
        return  # and no hole, and nothing newer: to know the order is to import all of them
    executor = _known(alias)
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


def check_migratable(alias: str = DEFAULT_DB_ALIAS) -> None:
    """Raises SchemaMismatch where migrating would not help: a newer schema, or one with a hole."""
    _known(alias)


def _applied(alias: str) -> AbstractSet[tuple[str, str]]:
    from django.db.migrations.recorder import MigrationRecorder  # noqa: PLC0415 - on demand

    return MigrationRecorder(connections[alias]).applied_migrations().keys()


def _known(alias: str) -> "MigrationExecutor":
    from django.db.migrations.exceptions import (  # noqa: PLC0415 - on demand
        InconsistentMigrationHistory,
    )
    from django.db.migrations.executor import MigrationExecutor  # noqa: PLC0415 - on demand

    link = connections[alias]
    executor = MigrationExecutor(link)
    known = set(executor.loader.disk_migrations or ())
    newer = sorted(
        name
        for app, name in executor.loader.applied_migrations
        if app == OURS and (app, name) not in known
    )
    if newer:
        raise SchemaMismatch(
            f"the database has the migration {OURS}.{newer[-1]}, which this version does not know; "
            "install the version that made it, or one after it"
        )
    try:
        executor.loader.check_consistent_history(link)
    except InconsistentMigrationHistory as hole:
        raise SchemaMismatch(
            f"the database is half migrated: {hole}; restore it from a backup"
        ) from None
    return executor
