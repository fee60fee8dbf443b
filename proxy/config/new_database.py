"""The whole schema at once, for a SQLite database that holds nothing yet.

Migrating an empty database builds every table as it was in each version, one state of all models
after the other: 1.05 s of CPU. Made from the models of today the same schema takes 0.2 s, and from
``data/schema.sql``, which says what came of that, 0.03 s: it names its migrations, so that nobody
has to import them. Where others are installed (another Django may have one more), it is the models'
turn. `tests/proxy/config/test_new_database.py` compares all three, table by table, and says how
the file is written anew.
"""

import re
import sqlite3
from pathlib import Path
from typing import Final

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections, router, transaction

from proxy.record.schema import migrations_on_disk

SNAPSHOT: Final = Path(__file__).parents[1] / "data" / "schema.sql"
"""A statement in each line."""
NOW: Final = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
MIGRATION: Final = re.compile(
    r"""INSERT INTO "django_migrations" VALUES\(\d+,'(\w+)','(\w+)',""", re.ASCII
)


def make_schema(alias: str = DEFAULT_DB_ALIAS) -> bool:
    """Make all tables, and note every migration as applied. False: there was something already.

    All or nothing, as one transaction. What follows a migration follows here as well: content
    types, permissions and roles. PostgreSQL's tables are not only what the models say (months are
    tables of their own), so that one is migrated.
    """
    link = connections[alias]
    if link.vendor != "sqlite" or link.introspection.table_names():
        return False
    told = SNAPSHOT.read_text(encoding="utf-8")
    if set(MIGRATION.findall(told)) != migrations_on_disk():
        return make_from_models(alias)
    with transaction.atomic(alias), link.cursor() as cursor:
        if link.introspection.table_names(cursor):  # another command was faster than our lock
            return False
        for statement in told.splitlines():
            cursor.execute(statement)
    return True


def make_from_models(alias: str = DEFAULT_DB_ALIAS) -> bool:
    """The same without the file, for a SQLite database."""
    from django.core.management.sql import (  # noqa: PLC0415 - seldom
        emit_post_migrate_signal,
        emit_pre_migrate_signal,
    )
    from django.db.migrations.loader import MigrationLoader  # noqa: PLC0415 - the same
    from django.db.migrations.recorder import MigrationRecorder  # noqa: PLC0415 - the same

    link = connections[alias]
    emit_pre_migrate_signal(verbosity=0, interactive=False, db=alias)
    loader = MigrationLoader(link)
    recorder = MigrationRecorder(link)
    with link.schema_editor() as editor:
        if link.introspection.table_names():  # another command was faster, before we had the lock
            return False
        for app in apps.get_app_configs():
            if app.label in loader.migrated_apps:
                for model in router.get_migratable_models(app, alias):
                    if model._meta.can_migrate(link):  # noqa: SLF001 - as Django's migrate asks
                        editor.create_model(model)
        for app_label, name in sorted(loader.disk_migrations or ()):
            recorder.record_applied(app_label, name)
    emit_post_migrate_signal(verbosity=0, interactive=False, db=alias)
    return True


def snapshot(link: sqlite3.Connection) -> str:
    """What ``schema.sql`` says when this is the database that ``make_from_models`` has made.

    Tables come before rows, which may refer to any.
    """
    lines = [
        re.sub(r"'\d{4}-\d\d-\d\d [\d:.]+'\);$", f"{NOW});", line)
        if MIGRATION.match(line)
        else line
        for line in link.iterdump()
        if line not in {"BEGIN TRANSACTION;", "COMMIT;"} and "sqlite_sequence" not in line
    ]
    return "\n".join((*sorted(lines, key=lambda line: not line.startswith("CREATE TABLE")), ""))
