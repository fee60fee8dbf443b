"""A client that a common generator makes from the OpenAPI schema builds and passes a round trip."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rest_framework.renderers import JSONRenderer

from tests.fakes.openapi import schema
from tests.proxy.admin import factories

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

PACKAGE = "generated_bridge_client"


@pytest.fixture
def generated(tmp_path, monkeypatch):
    """Generate the client; return a function that imports one of its modules."""
    (tmp_path / "schema.json").write_bytes(JSONRenderer().render(schema()))
    tool = Path(sys.executable).with_name("openapi-python-client")
    options = ["--path", "schema.json", "--output-path", PACKAGE, "--meta", "none"]
    environment = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    done = subprocess.run(  # noqa: S603 - constant arguments
        [tool, "generate", *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout, done.stdout
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name: importlib.import_module(f"{PACKAGE}.{name}")
    for name in [one for one in sys.modules if one.startswith(PACKAGE)]:
        del sys.modules[name]


def test_every_module_imports_and_a_row_makes_a_round_trip(generated, served_url):
    secret = factories.key("terraform", of="ops", scopes=["admin"])[1]
    client = generated("client").AuthenticatedClient(served_url, token=secret)
    with client:
        round_trip(generated, client)


def round_trip(generated, client):
    models = generated("models")
    folder = Path(generated("api").__file__).parent
    operations = {path.stem: path.parent.name for path in folder.glob("*/*.py")}
    for name, group in operations.items():
        generated(f"api.{group}.{name}")

    def call(name, /, *args, **kwargs):
        return generated(f"api.{operations[name]}.{name}").sync(*args, client=client, **kwargs)

    wanted = models.TeamRequest.from_dict({"name": "mobile", "retention_days": 30})
    created = call("teams_post", body=wanted)
    assert (created.name, created.retention_days, created.managed) == ("mobile", 30, False)
    assert call("team", "mobile") == created

    change = models.PatchedTeamRequest.from_dict({"limits": {"rpm": 600}})
    changed = call("team_patch", "mobile", body=change)
    assert changed.limits.to_dict() == {"rpm": 600}
    assert [team.name for team in call("teams").data] == ["mobile", "ops"]

    key = call("keys_post", body=models.KeyRequest.from_dict({"team": "ops", "name": "app"}))
    assert key.team.id == "ops"
    found = call("key", key.id, expand=[models.KeyExpandItem.TEAM])
    assert found.team.to_dict()["store"] == "full"
    assert [one.id for one in call("keys", team=["ops"], name=["app"]).data] == [key.id]
    assert call("key_delete", key.id).revoked_at

    call("team_delete", "mobile")
    assert [team.name for team in call("teams").data] == ["ops"]
