"""Shared files of counters that are damaged or removed while a gateway of two processes serves."""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.counters.shared_file import DAMAGED
from tests.fakes.load.kill_process import wait_until_drained
from tests.fakes.servers.gateway import Gateway
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.waiting import until

from .test_budgets_two_workers import (
    SECRETS,
    config_for,
    ledger_cost,
    send_concurrently,
    send_request,
)

SPENT = 20
"""Requests before the fault. With their cost of 0.001 USD, the budget has room for three more."""


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"not a database" * 1_000)
    path.with_name(f"{path.name}-wal").write_bytes(b"")


def truncate(path: Path) -> None:
    path.with_name(f"{path.name}-wal").write_bytes(b"")
    path.write_bytes(b"")


def replace(path: Path) -> None:
    path.with_suffix(".new").write_bytes(b"x" * 8_192)
    path.with_suffix(".new").replace(path)


def overwrite_tables(path: Path) -> None:
    """Damage all pages but the first: a read of the schema succeeds, a read of a table does not."""
    with path.open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xff" * (path.stat().st_size - 4_096))


FAULTS: tuple[Callable[[Path], None], ...] = (
    Path.unlink,
    overwrite,
    overwrite_tables,
    truncate,
    replace,
)


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture
def gateway(upstream: ScriptedUpstream, tmp_path: Path) -> Iterator[Gateway]:
    config = config_for(upstream)
    with Gateway(tmp_path / "gateway", config, workers=2, environment=SECRETS) as running:
        yield running


def is_sound(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("PRAGMA quick_check").fetchone() == ("ok",))


@pytest.mark.parametrize("damage", FAULTS, ids=lambda one: one.__name__)
def test_a_budget_and_a_limit_survive_the_loss_of_their_file(
    gateway: Gateway, upstream: ScriptedUpstream, damage: Callable[[Path], None]
):
    data = gateway.folder / "data"
    upstream.on("m", json_response(upstream_scripts.COMPLETION))
    assert Counter(send_request(gateway, "POOR") for _ in range(SPENT)) == {200: SPENT}
    assert send_request(gateway, "FAST") == 200
    wait_until_drained(gateway)
    until(lambda: ledger_cost(gateway, "POOR") == SPENT * 50_000)

    for name in ("counters.sqlite3", "limits.sqlite3"):
        with contextlib.closing(sqlite3.connect(data / name)) as file:
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the WAL would repair the file
        damage(data / name)

    assert send_concurrently(gateway, upstream, "POOR", 30)[0] == {200: 3, 402: 27}
    fast, duration = send_concurrently(gateway, upstream, "FAST", 20)
    assert fast.keys() == {200, 429}
    assert fast[200] <= 6 + duration * 6 / 60 + 1
    assert all(is_sound(data / name) for name in ("counters.sqlite3", "limits.sqlite3"))
    assert b"sqlite3 cannot be used" not in gateway.request("GET", "/readyz").body
    if (data / f"counters.sqlite3{DAMAGED}").exists():
        assert "a damaged counters.sqlite3 was replaced" in gateway.run_command("doctor").stdout


def test_readiness_and_doctor_name_a_file_that_cannot_be_used(gateway: Gateway, upstream):
    data = gateway.folder / "data"
    upstream.on("m", json_response(upstream_scripts.COMPLETION))
    (data / "counters.sqlite3").unlink()
    (data / "counters.sqlite3").mkdir()

    assert {send_request(gateway, "POOR") for _ in range(4)} == {503}
    until(lambda: b"counters.sqlite3 cannot be used" in gateway.request("GET", "/readyz").body)
    assert "counters.sqlite3 cannot be read" in gateway.run_command("doctor").stdout

    (data / "counters.sqlite3").rmdir()
    assert send_request(gateway, "POOR") == 200
