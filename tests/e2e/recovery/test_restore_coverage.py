"""``settleorphans --restore`` says which requests the journals still have, and which may be missing."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.ledger.journal.reader import JournalReader
from tests.fakes.load.kill_process import wait_until_drained
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts

ROUTES = """
[[routes]]
model = "m"
targets = [{ upstream = "chat" }]
"""
REQUEST = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that was started twice, so that its journal has two segments with a request each."""
    with ScriptedUpstream() as upstream:
        upstream.on("m", json_response(upstream_scripts.COMPLETION))
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        with Gateway(tmp_path / "gateway", config) as running:
            data = running.folder / "data"
            shutil.copy(data / "ledger.sqlite3", tmp_path / "backup")
            for _ in range(2):
                body, headers = json.dumps(REQUEST).encode(), {"content-type": "application/json"}
                assert running.request("POST", "/v1/messages", body, headers).status == 200
                wait_until_drained(running)
                running.end_process()
                running.start()
            running.end_process()
            for file in data.glob("ledger.sqlite3*"):
                file.unlink()
            shutil.copy(tmp_path / "backup", data / "ledger.sqlite3")
            yield running


def segments(gateway: Gateway) -> list[Path]:
    return sorted((gateway.folder / "data" / "journal-0").glob("*.segment"))


def test_a_restore_from_whole_journals_says_what_it_covers(gateway: Gateway):
    run = gateway.run_command("settleorphans", "--restore", "1h")

    assert (run.returncode, len(gateway.rows())) == (0, 2)
    assert "records restored: 4" in run.stdout
    assert "journal-0 is complete from its beginning to 20" in run.stdout


def test_a_restore_names_the_time_whose_records_were_removed_for_space(gateway: Gateway):
    segments(gateway)[0].unlink()  # what the limit of the journal's size does

    run = gateway.run_command("settleorphans", "--restore", "1h", "--json")
    result = json.loads(run.stdout)

    assert (run.returncode, len(gateway.rows())) == (1, 1)
    assert "journal-0 kept its newest 512 MB of posted records only: requests from 20" in run.stderr
    assert result["journals"][0]["from"] < result["journals"][0]["to"]


def test_a_restore_needs_no_records_from_before_the_backup(gateway: Gateway):
    """The gateway was idle from before the backup until its second request."""
    first = segments(gateway)[0]
    long_ago = time.time() - 7_200
    os.utime(first, (long_ago, long_ago))
    reader = JournalReader(first.parent)
    with contextlib.closing(reader):
        reader.read(1_000)
        reader.remove_segments(time.time() - 3_600, 2**30)

    assert not first.exists()
    assert gateway.run_command("settleorphans", "--restore", "1h").returncode == 0
    run = gateway.run_command("settleorphans", "--restore", "3h")
    assert (run.returncode, "posted records only: requests from 20" in run.stderr) == (1, True)


@pytest.mark.parametrize("fault", ["no open record", "damaged", "no journal"])
def test_a_restore_that_cannot_read_a_record_ends_with_1(gateway: Gateway, fault: str):
    path = segments(gateway)[0]
    raw = path.read_bytes()
    if fault == "no journal":
        shutil.rmtree(path.parent)
        message = "has no journal: all requests since the backup may be missing"
    elif fault == "damaged":
        path.write_bytes(raw[:100] + bytes(byte ^ 255 for byte in raw[100:110]) + raw[110:])
        message = "damaged bytes: requests may be missing"
    else:
        path.write_bytes(raw[:12] + raw[raw.index(b"\xf7REC", 13) :])
        message = "journal-0 has records of 1 request not restored"

    run = gateway.run_command("settleorphans", "--restore", "1h")

    assert run.returncode == 1
    assert message in run.stderr
