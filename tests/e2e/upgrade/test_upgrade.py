"""Each version starts on the data directory of each release and has everything that was in it."""

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.upstreams.upstream import ScriptedUpstream

from .make_release import HISTORY, HOME, HOST, STORED_SECRET, answer, post
from .releases import (
    DUMP,
    RELEASES,
    differences,
    expectation,
    get,
    read_back,
    restore,
    serve,
    unpack,
)


class Upgraded(NamedTuple):
    """A gateway of this version on the data directory of a release, and what that release said."""

    gateway: Gateway
    expected: dict[str, Any]
    upstream: ScriptedUpstream


def is_slow(release: str) -> tuple[pytest.MarkDecorator, ...]:
    return () if release.endswith("-sqlite") else (pytest.mark.slow,)


@pytest.fixture(scope="module", params=[pytest.param(one, marks=is_slow(one)) for one in RELEASES])
def upgraded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upgraded]:
    folder, expected = tmp_path_factory.mktemp("upgrade"), expectation(request.param)
    unpack(request.param, folder / "data")
    with ScriptedUpstream() as upstream, contextlib.ExitStack() as resources:
        upstream.choose(answer)
        postgres = None
        if (folder / "data" / DUMP).exists():
            postgres = resources.enter_context(Postgres(migrated=False))
            restore(postgres, folder / "data")
        with serve(folder, upstream, postgres, key=expected["key"]) as gateway:
            yield Upgraded(gateway, expected, upstream)


def test_there_are_data_directories_of_the_first_release() -> None:
    assert {"1.0.0-sqlite", "1.0.0-postgresql"} <= set(RELEASES)


@pytest.mark.parametrize("release", RELEASES)
def test_the_files_contain_no_path_and_no_name_of_the_machine_that_made_them(
    release: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    unpack(release, data)

    if (data / DUMP).exists():
        written = re.findall(
            r"INTO public.proxy_drainwatermark VALUES \(.*'(\S+:/\S+)'", (data / DUMP).read_text()
        )
    else:
        with contextlib.closing(sqlite3.connect(data / "ledger.sqlite3")) as database:
            written = [
                one for (one,) in database.execute("SELECT journal FROM proxy_drainwatermark")
            ]
    assert written == [f"{HOST}:{HOME}/data/journal-0"]
    files = [path for path in data.rglob("*") if path.is_file()]
    assert [path for path in files if b"/tmp" in path.read_bytes()] == []


def test_reports_transcripts_and_export_are_as_the_release_gave_them(upgraded: Upgraded) -> None:
    """The file of the archived month, as the release wrote it, is brought back first."""
    gateway, expected, _ = upgraded

    restored = json.loads(gateway.manage("restoremonth", "2026-06", "--json"))
    gateway.closed_rows(*expected["unposted"])

    assert restored["rows"] == restored["inserted"] == HISTORY
    assert list(differences(expected["said"], read_back(gateway, expected["until"]))) == []


def test_the_hash_chain_of_the_release_is_intact(upgraded: Upgraded) -> None:
    upgraded.gateway.closed_rows(*upgraded.expected["unposted"])

    checked = upgraded.gateway.manage("verifyledger")

    assert "everything is as it was written" in checked
    assert not checked.startswith("0 links")


def test_a_key_and_a_stored_secret_of_the_release_work(upgraded: Upgraded) -> None:
    reply = post(upgraded.gateway, 0, "Does the old key work?")

    assert reply.status == 200, reply.body
    [received] = upgraded.upstream.requests
    assert received.headers["authorization"] == f"Bearer {STORED_SECRET}"


def test_a_missing_or_changed_value_is_a_difference_and_a_new_field_is_not() -> None:
    assert list(differences({"a": [{"b": 1}]}, {"a": [{"b": 1, "new": 2}], "c": 3})) == []
    assert list(differences({"a": [{"b": 1}]}, {"a": [{}]})) == [".a[0].b is missing"]
    assert list(differences({"a": [1]}, {"a": []})) == [".a: [1] became []"]


RENAME = """
from proxy.models import Team
team = Team.objects.get(name="platform")
team.name, team.managed = "renamed", False
team.save()
Team.objects.create(name="platform")
"""


def test_a_team_of_the_release_keeps_its_requests_when_another_one_gets_its_name(
    upgraded: Upgraded,
) -> None:
    """The last test of this gateway, because it renames the team."""
    gateway, expected, _ = upgraded
    gateway.closed_rows(*expected["unposted"])
    period = f"from=2026-06-01T00:00:00Z&to={expected['until']}&limit=1000"
    before = get(gateway, f"requests/?team=platform&{period}")["data"]

    gateway.manage("shell", "-v", "0", "-c", RENAME)

    after = get(gateway, f"requests/?team=renamed&{period}")["data"]
    assert [row["id"] for row in after] == [row["id"] for row in before] != []
    assert {row["team"]["name"] for row in after} == {"renamed"}
    assert get(gateway, f"requests/?team=platform&{period}")["data"] == []
    assert "everything is as it was written" in gateway.manage("verifyledger")
