"""Texts of conversations are encrypted wherever they rest, and unreadable without their key."""

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from proxy.secrets import derive
from tests.fakes.forked_python import REPOSITORY
from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.upstreams.upstream import ScriptedUpstream

from .planted_words import (
    ANSWER,
    FIRST_KEY,
    PROMPT,
    SECOND_KEY,
    TOOL_INPUT,
    WORDS,
    exported_figures,
    gateway_with_words,
    send,
    send_words,
    shown_figures,
    transcript,
    wait_for_transcript,
    words_in_files,
    words_of_pages,
)

BODIES = {"proxy_part": "data", "proxy_transcript": "manifest"}
TEXTS = "SELECT prompt FROM proxy_exchange UNION SELECT preview FROM proxy_exchange UNION SELECT error_message FROM proxy_exchange"


def heads_of_stored_bodies(data) -> set[bytes]:
    """Return the first bytes of all stored bodies and texts."""
    with closing(sqlite3.connect(data / "ledger.sqlite3")) as database:
        found = {bytes(text[:5], "utf-8") for (text,) in database.execute(TEXTS) if text}
        for table, column in BODIES.items():
            rows = database.execute(f"SELECT {column} FROM {table}")  # noqa: S608 - constants
            found |= {bytes(body[:4]) for (body,) in rows}
        streams = "SELECT stream FROM proxy_transcript WHERE stream IS NOT NULL"
        return found | {bytes(body[:4]) for (body,) in database.execute(streams)}


@pytest.mark.timeout(120)
def test_texts_are_encrypted_and_need_their_key(tmp_path):
    with ScriptedUpstream() as upstream:
        gateway = gateway_with_words(tmp_path / "g", upstream, BRIDGE_BODY_KEYS=FIRST_KEY)
        with gateway:
            ids = send_words(gateway)
            pages = words_of_pages(gateway, *ids)
            answers = [transcript(gateway, one).body.decode() for one in ids]
            before = shown_figures(gateway)
            search = gateway.request("GET", f"/api/v1/search/?q={PROMPT}")

        assert {word for word in WORDS if word in pages} >= {PROMPT, ANSWER, TOOL_INPUT}
        assert all(word in text for text in answers for word in (PROMPT, ANSWER, TOOL_INPUT))
        assert b"BRIDGE_BODY_KEYS" in search.body
        assert words_in_files(tmp_path / "g" / "data") == set()
        assert heads_of_stored_bodies(tmp_path / "g" / "data") == {b"ENC1", b"ENC1."}

        gateway.environment["BRIDGE_BODY_KEYS"] = SECOND_KEY  # the first key was destroyed
        with gateway:
            assert shown_figures(gateway) == before
            pages = words_of_pages(gateway, *ids)
            refused = [transcript(gateway, one) for one in ids]
            readable = wait_for_transcript(gateway, send(gateway, f"Another {PROMPT}."))
            ready = json.loads(gateway.request("GET", "/readyz").body)

    assert not [word for word in WORDS if word in pages]
    key = json.loads(refused[0].body)["error"]["missing_body_key"]
    assert f"encrypted with key {key}, which this gateway does not have" in pages
    assert [reply.status for reply in refused] == [409, 409]
    assert PROMPT in readable
    assert ready["degraded"] == [f"texts cannot be read: body keys are missing: {key}"]


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with Postgres(migrated=False) as server:
        yield server


def encrypt_with_a_kill(gateway: Gateway) -> None:
    """Start encryptbodies, kill it when the first batch is stored, and run it to its end."""
    program = [sys.executable, "manage.py", "encryptbodies", "--keep-space", "--batch", "1"]
    with subprocess.Popen(program, cwd=REPOSITORY, env=gateway.environment_variables()) as command:  # noqa: S603 - our own program
        database = gateway.folder / "data" / "ledger.sqlite3"
        wait_for_encrypted_manifest(database)
        command.kill()
    gateway.manage("encryptbodies", "--keep-space")


def wait_for_encrypted_manifest(database: Path) -> None:
    query = (
        "SELECT count(*) FROM proxy_transcript WHERE substr(manifest, 1, 4) = CAST('ENC1' AS BLOB)"
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            if connection.execute(query).fetchone()[0]:
                return
        time.sleep(0.01)
    raise AssertionError("nothing was encrypted")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_stored_texts_are_encrypted_and_keys_are_rotated(tmp_path):
    data = tmp_path / "g" / "data"
    with ScriptedUpstream() as upstream:
        gateway = gateway_with_words(tmp_path / "g", upstream)
        with gateway:
            ids = send_words(gateway)
            for number in range(40):
                send(gateway, f"Request {number} about the {PROMPT}.")
            last = send(gateway, "The last one.")
            gateway.closed_rows(last)
            before = exported_figures(gateway)
        assert {word.partition(" ")[0] for word in words_in_files(data)} >= {PROMPT, ANSWER}

        gateway.environment["BRIDGE_BODY_KEYS"] = FIRST_KEY
        with gateway:
            texts = [transcript(gateway, one).body for one in ids]
            assert PROMPT in words_of_pages(gateway, *ids)
            encrypt_with_a_kill(gateway)
            assert [transcript(gateway, one).body for one in ids] == texts
            assert "everything is as it was written" in gateway.manage("verifyledger")
            mixed = send(gateway, f"An encrypted {PROMPT}.")
            gateway.closed_rows(mixed)

        gateway.environment["BRIDGE_BODY_KEYS"] = f"{SECOND_KEY}\n{FIRST_KEY}"
        with gateway:
            assert [transcript(gateway, one).body for one in ids] == texts
            gateway.manage("encryptbodies")
            assert heads_of_transcripts(data) == {current_head_of(SECOND_KEY)}
            assert gateway.manage("verifyledger").endswith("everything is as it was written\n")
        delete_old_copies(gateway)
        assert words_in_files(data) == set()

        gateway.environment["BRIDGE_BODY_KEYS"] = SECOND_KEY
        with gateway:
            assert [transcript(gateway, one).body for one in ids] == texts
            after = exported_figures(gateway)
            assert json.loads(gateway.request("GET", "/readyz").body)["degraded"] == []

        del gateway.environment["BRIDGE_BODY_KEYS"]  # without any key
        with gateway:
            assert transcript(gateway, ids[0]).status == 409
            pages = words_of_pages(gateway, *ids)
            verified = gateway.manage("verifyledger")
            key = json.loads(transcript(gateway, ids[0]).body)["error"]["missing_body_key"]
            gateway.manage("encryptbodies", "--forget", key)
            assert gateway.run_command("encryptbodies").returncode == 2
    assert f"transcripts not checked: encrypted with key {key}" in verified
    assert verified.endswith("everything is as it was written\n")
    assert not [word for word in WORDS if word in pages]
    assert [row for row in after if row["id"] in {one["id"] for one in before}] == before


def delete_old_copies(gateway: Gateway) -> None:
    """Do what a day does: old parts, posted journals and recorded calls are removed."""
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    data = gateway.folder / "data"
    with closing(sqlite3.connect(data / "ledger.sqlite3")) as database, database:
        database.execute("UPDATE proxy_part SET used = datetime(used, '-1 day')")
    gateway.manage("pruneledger", "--now", tomorrow)
    for journal in data.glob("journal-*/"):
        shutil.rmtree(journal)
    (data / "calls.sqlite3").unlink(missing_ok=True)


def heads_of_transcripts(data: Path) -> set[bytes]:
    with closing(sqlite3.connect(data / "ledger.sqlite3")) as database:
        rows = database.execute("SELECT manifest FROM proxy_transcript")
        return {bytes(manifest[:8]) for (manifest,) in rows}


def current_head_of(key: str) -> bytes:
    return b"ENC1" + derive("id of a body key", key)[:4]


def words_in_database_files(postgres: Postgres) -> set[str]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
    return words_in_files(postgres.home)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_copied_ledger_contains_no_text(tmp_path, postgres):
    with ScriptedUpstream() as upstream:
        gateway = gateway_with_words(tmp_path / "g", upstream, BRIDGE_BODY_KEYS=FIRST_KEY)
        with gateway:
            ids = send_words(gateway)
            before = [transcript(gateway, one).body for one in ids]
            pages = words_of_pages(gateway, *ids)
        gateway.manage("copyledger", "--to", postgres.url)
        gateway.environment["DATABASE_URL"] = postgres.url
        with gateway:
            assert [transcript(gateway, one).body for one in ids] == before
            new = send(gateway, f"Another {PROMPT}.", stream=True)
            gateway.closed_rows(new)
            assert PROMPT in transcript(gateway, new).body.decode()
            assert gateway.manage("verifyledger").endswith("everything is as it was written\n")
        files = words_in_database_files(postgres)
        gateway.environment["BRIDGE_BODY_KEYS"] = f"{SECOND_KEY},{FIRST_KEY}"
        gateway.manage("encryptbodies", "--full")
        gateway.environment["BRIDGE_BODY_KEYS"] = SECOND_KEY
        with gateway:
            assert [transcript(gateway, one).body for one in ids] == before
            assert PROMPT in words_of_pages(gateway, *ids)
    assert PROMPT in pages
    assert files == set()
