"""``eraseuser`` leaves no string of a person in any file, and all totals and the chain unchanged."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fakes.forked_python import REPOSITORY
from tests.fakes.load.kill_process import wait_until_drained
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.upstreams.upstream import ScriptedUpstream

from . import plant
from .plant import NAME, OTHER

ARCHIVE_AND_BACK_UP = """
from django.core.management import call_command
call_command("archivemonths", "--remove", stdout=open("/dev/null", "w"))
call_command("backup", {path!r}, stdout=open("/dev/null", "w"))
"""


def prepare(gateway: Gateway, *, searches: bool = True) -> list[str]:
    """Plant data, send requests and search; return the ids of Ben's requests."""
    gateway.manage("shell", "--verbosity", "0", "-c", plant.SETUP)
    plant.wait_for_keys(gateway)
    replies = [plant.send(gateway, name, n) for n in range(2) for name in (NAME, OTHER)]
    assert [reply.status for reply in replies] == [200] * 4, replies[0].body
    assert "an administrator stopped this request" in plant.stop_request_of_other(gateway)
    wait_until_drained(gateway)
    if searches:
        plant.search(gateway)
    return [reply.headers["request-id"] for reply in replies[1::2]]


def transcripts(gateway: Gateway, ids: list[str]) -> list[dict[str, Any]]:
    replies = [gateway.request("GET", f"/api/v1/requests/{each}/transcript/") for each in ids]
    assert {reply.status for reply in replies} == {200}
    return [json.loads(reply.body) for reply in replies]


def with_pseudonym(totals: dict[str, Any], pseudonym: str) -> dict[str, Any]:
    """Return the totals with the pseudonym instead of the person's name."""
    users = {pseudonym if name == NAME else name: n for name, n in totals["users"].items()}
    return totals | {"users": users}


def test_no_file_contains_a_string_of_an_erased_person(tmp_path: Path) -> None:
    data, backup = tmp_path / "gateway/data", tmp_path / "backup.sqlite3"
    with ScriptedUpstream() as upstream:
        upstream.choose(plant.respond)
        config = toml_for(plant.upstream_config(upstream), plant.ROUTES)
        with Gateway(tmp_path / "gateway", config=config) as gateway:
            others = prepare(gateway)
            totals = plant.totals(gateway, ARCHIVE_AND_BACK_UP.format(path=str(backup)))
            read = transcripts(gateway, others)
            kinds = {re.split(r"[/:-]", name)[0] for name in plant.found_in(data)}
            assert kinds >= {
                "ledger.sqlite3", "journal", "archive", "configuration.json",
            }  # fmt: skip

            done = json.loads(gateway.manage("eraseuser", NAME, "--yes", "--json"))

            assert plant.found_in(data) == {}
            assert plant.found_in(data, "vwnarwhal")["ledger.sqlite3: vwnarwhal-beta"]
            assert (done["requests"], done["archived_requests"], done["transcripts"]) == (2, 4, 2)
            assert done["left"] == []
            assert plant.totals(gateway) == with_pseudonym(totals, done["pseudonym"])
            assert transcripts(gateway, others) == read
            assert plant.send(gateway, NAME, 9).status == 401
            assert plant.send(gateway, OTHER, 9).status == 200
            wait_until_drained(gateway)
            gateway.end_process()
            assert plant.found_in(data) == {}

            restore(backup, data)
            assert {name.partition(":")[0] for name in plant.found_in(data)} == {"ledger.sqlite3"}
            gateway.manage("settleorphans", "--restore", "1h")
            assert "everything is as it was written" in gateway.manage("verifyledger")
            assert plant.found_in(data) == {}


@pytest.fixture
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dump_of_postgresql_contains_no_string_of_an_erased_person(
    server: Postgres, tmp_path: Path
) -> None:
    dump = server.binaries / "pg_dump"
    url = server.url.replace("postgres://", "postgresql://")
    environment = {
        "DATABASE_URL": server.url,
        "PATH": os.pathsep.join((str(server.binaries), os.environ["PATH"])),
    }

    def found() -> int:
        content = subprocess.run([dump, url], capture_output=True, check=True, timeout=60).stdout  # noqa: S603 - fixed
        texts = plant.texts_of_dump(content)
        return sum(text.lower().count(plant.MARK.encode()) for text in texts)

    with ScriptedUpstream() as upstream:
        upstream.choose(plant.respond)
        config = toml_for(plant.upstream_config(upstream), plant.ROUTES)
        folder = tmp_path / "gateway"
        with Gateway(folder, config=config, environment=environment) as gateway:
            others = prepare(gateway, searches=False)  # there is no index of encrypted texts
            gateway.manage("archivemonths", "--remove")
            totals, read = plant.totals(gateway), transcripts(gateway, others)
            assert found() > 50

            done = json.loads(gateway.manage("eraseuser", NAME, "--yes", "--json"))

            assert found() == 0
            assert plant.found_in(folder / "data") == {}
            assert plant.totals(gateway) == with_pseudonym(totals, done["pseudonym"])
            assert transcripts(gateway, others) == read
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM auth_user").fetchone() == (3,)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_person_is_erased_from_encrypted_texts(tmp_path: Path) -> None:
    data, environment = tmp_path / "gateway/data", {"BRIDGE_BODY_KEYS": "k" * 43}
    with ScriptedUpstream() as upstream:
        upstream.choose(plant.respond)
        config = toml_for(plant.upstream_config(upstream), plant.ROUTES)
        with Gateway(tmp_path / "gateway", config=config, environment=environment) as gateway:
            others = prepare(gateway, searches=False)  # there is no index of encrypted texts
            gateway.manage("archivemonths", "--remove")
            totals, read = plant.totals(gateway), transcripts(gateway, others)

            done = json.loads(gateway.manage("eraseuser", NAME, "--yes", "--json"))

            assert (done["transcripts"], done["left"]) == (2, [])
            assert plant.found_in(data) == {}
            assert plant.totals(gateway) == with_pseudonym(totals, done["pseudonym"])
            assert transcripts(gateway, others) == read


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_command_is_resumed(tmp_path: Path) -> None:
    """The process gets SIGKILL before it revokes the keys, and when it has written a month.

    A start with an older backup erases the person again.
    """
    data = tmp_path / "gateway/data"
    with ScriptedUpstream() as upstream:
        upstream.choose(plant.respond)
        config = toml_for(plant.upstream_config(upstream), plant.ROUTES)
        with Gateway(tmp_path / "gateway", config=config) as gateway:
            others = prepare(gateway)
            backup = str(tmp_path / "backup.sqlite3")
            totals = plant.totals(gateway, ARCHIVE_AND_BACK_UP.format(path=backup))
            read = transcripts(gateway, others)
            for pattern in ("erased_users", "archive/*-v2.parquet"):
                assert kill_when_exists(gateway, data, pattern)
                assert plant.found_in(data) != {}

            done = json.loads(gateway.manage("eraseuser", NAME, "--yes", "--json"))

            assert plant.found_in(data) == {}
            assert plant.totals(gateway) == with_pseudonym(totals, done["pseudonym"])
            assert transcripts(gateway, others) == read

            gateway.stop()
            restore(tmp_path / "backup.sqlite3", data)
            gateway.start()

            assert "users erased again: 1" in gateway.log
            assert plant.found_in(data) == {}


def restore(backup: Path, data: Path) -> None:
    for file in data.glob("ledger.sqlite3*"):
        file.unlink()
    shutil.copy(backup, data / "ledger.sqlite3")


def kill_when_exists(gateway: Gateway, data: Path, pattern: str) -> bool:
    """Run the command, and kill it as soon as a file exists; return whether it still ran."""
    process = subprocess.Popen(  # noqa: S603 - our own command line
        [sys.executable, "manage.py", "eraseuser", NAME, "--yes"],
        cwd=REPOSITORY, env=gateway.environment_variables(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None and not list(data.glob(pattern)):
        pass
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL
