"""An installation of an early version, with rows, comes to this one; also with a stop on the way."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.roles import OWNER, ROLES
from tests.proxy.record.postgres import Postgres

ROOT = Path(__file__).parents[2]
EARLY = "0002_budget_notices"
ROWS = 3

RECORD = f"""
import datetime as dt
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
state = MigrationExecutor(connection).loader.project_state(("proxy", {EARLY!r}))
Exchange = state.apps.get_model("proxy", "Exchange")
at = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
for day in range({ROWS}):
    Exchange.objects.create(
        id=f"req_{{day:026}}", state="closed", outcome="completed", status=200,
        created=at + dt.timedelta(days=day), finished=at + dt.timedelta(days=day, seconds=1),
        team="platform", key_name="ci", user="ada", model_requested="claude-x",
        input_tokens=10, input_source="reported", output_tokens=5, output_source="reported",
    )
"""
GUESSABLE = f"""
import datetime as dt
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from proxy.secrets import digest_of
state = MigrationExecutor(connection).loader.project_state(("proxy", {EARLY!r}))
Team, ApiKey, Revision = (
    state.apps.get_model("proxy", name) for name in ("Team", "ApiKey", "Revision")
)
Revision.objects.create(pk=1, number=5)
red = Team.objects.create(name="red")
for name, prefix in (("ci", ""), ("made", "sk-br-12345678")):
    digest = digest_of(f"not made yet: red/{{name}}")
    ApiKey.objects.create(team=red, name=name, prefix=prefix, digest=digest)
"""
TAKE = """
from django.contrib.auth.models import Group, Permission
owner = Group.objects.get(name="owner")
owner.permissions.remove(Permission.objects.get(codename={codename!r}))
"""
TELL = """
import json
from django.contrib.auth.models import Group
from proxy.models import ApiKey, Revision
from django.db.models import Sum
from proxy.models import DaySummary, DayWho
held = Group.objects.get(name="owner").permissions.select_related("content_type")
print(json.dumps({
    "sums": [table.objects.aggregate(n=Sum("requests"))["n"] for table in (DaySummary, DayWho)],
    "keys": [[key.name, key.digest is None] for key in ApiKey.objects.order_by("name")],
    "revision": list(Revision.objects.values_list("number", flat=True)),
    "owner": [f"{one.content_type.app_label}.{one.codename}" for one in held],
}))
"""


class Installation:
    """A data directory and its database."""

    def __init__(self, folder: Path, database_url: str = "") -> None:
        self._environment = {
            **os.environ,
            "BRIDGE_DATA_DIR": str(folder),
            "BRIDGE_SECRET_KEY": "upgrade-" * 4 + os.urandom(16).hex(),
            "DJANGO_SETTINGS_MODULE": "bridge_project.settings",
            "DATABASE_URL": database_url or f"sqlite:///{folder}/ledger.sqlite3",
        }

    def migrate(self, *to: str) -> None:
        self._python(str(ROOT / "manage.py"), "migrate", "--verbosity", "0", *to)

    def run(self, program: str) -> Any:
        told = self._python("-c", f"import django; django.setup()\n{program}")
        return json.loads(told) if told.strip() else None

    def _python(self, *arguments: str) -> str:
        ended = subprocess.run(  # noqa: S603 -- our own program
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture(params=["sqlite", "postgresql"])
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installation]:
    if request.param == "sqlite":
        yield Installation(tmp_path)
        return
    server = Postgres()
    server.start()
    yield Installation(tmp_path, server.url)
    server.stop()
    server.remove()


@pytest.mark.timeout(600)
def test_rows_are_added_up_and_new_permissions_are_given_once(installation: Installation) -> None:
    installation.migrate("proxy", EARLY)
    installation.run(RECORD)
    installation.run(GUESSABLE)
    installation.run(TAKE.format(codename="view_transcript"))  # an operator's choice, before ...

    installation.migrate()
    upgraded = installation.run(TELL)
    installation.run(TAKE.format(codename="view_drift"))  # ... and after
    installation.migrate()
    again = installation.run(TELL)

    assert upgraded["sums"] == again["sums"] == [ROWS, ROWS]
    assert upgraded["keys"] == [["ci", True], ["made", False]]  # a guess opens nothing any more
    assert upgraded["revision"] > [5]  # nodes that run read their keys again
    assert {*ROLES[OWNER]} - {*upgraded["owner"]} == {"proxy.view_transcript"}
    assert {*upgraded["owner"]} - {*again["owner"]} == {"proxy.view_drift"}
