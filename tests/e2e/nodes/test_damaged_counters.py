"""Shared files of counters that are damaged or removed while a gateway of two processes serves."""

import contextlib
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.counters.shared_file import DAMAGED
from tests.fakes.load.kill_process import wait_until_drained
from tests.fakes.servers.gateway import KEY, Gateway
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.waiting import until

from .late_signatures import assert_signature_returns
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

    with contextlib.closing(sqlite3.connect(data / "counters.sqlite3")) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the WAL would repair the file
    damage(data / "counters.sqlite3")

    assert send_concurrently(gateway, upstream, "POOR", 30)[0] == {200: 3, 402: 27}
    fast, duration = send_concurrently(gateway, upstream, "FAST", 20)
    assert fast.keys() == {200, 429}
    assert fast[200] <= 6 + duration * 6 / 60 + 1
    assert is_sound(data / "counters.sqlite3")
    assert b"sqlite3 cannot be used" not in gateway.request("GET", "/readyz").body
    if (data / f"counters.sqlite3{DAMAGED}").exists():
        assert_replacement_is_reported(gateway, "counters.sqlite3")


def assert_replacement_is_reported(gateway: Gateway, name: str) -> None:
    """Check that each process reports it, until an administrator has deleted the old file."""
    text = f"a damaged or removed {name} was replaced"
    assert text in gateway.request("GET", "/readyz").body.decode()
    assert text in gateway.run_command("doctor").stdout
    (gateway.folder / "data" / f"{name}{DAMAGED}").unlink()
    assert text not in gateway.request("GET", "/readyz").body.decode()


SESSION = {"x-api-key": KEY, "x-claude-code-session-id": "one"}
"""Headers of a session whose calls are recorded in calls.sqlite3."""


def overwrite_with_random_bytes(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.write_bytes(random.Random(39).randbytes(max(8_192, file.stat().st_size)))  # noqa: S311


@pytest.mark.parametrize("damage", [overwrite_with_random_bytes, Path.unlink])
def test_one_process_makes_each_of_its_files_anew(
    upstream: ScriptedUpstream, tmp_path: Path, damage: Callable[[Path], None]
):
    config = config_for(upstream).replace(
        'model = "m"',
        'model = "late"\ntargets = [{ upstream = "chat" }]\n\n[[routes]]\nmodel = "m"',
        1,
    )
    upstream.on("m", json_response(upstream_scripts.COMPLETION))
    upstream.on("late", upstream_scripts.late_signature())
    with Gateway(tmp_path / "gateway", config, SECRETS) as gateway:
        data = gateway.folder / "data"
        assert Counter(send_request(gateway, "POOR") for _ in range(SPENT)) == {200: SPENT}
        assert_signature_returns(upstream, [gateway] * 2, SESSION)
        wait_until_drained(gateway)
        until(lambda: ledger_cost(gateway, "POOR") == SPENT * 50_000)
        files = {path.name for path in data.glob("*.sqlite3")} - {"ledger.sqlite3"}
        assert files == {"counters.sqlite3", "calls.sqlite3"}

        for name in files:
            damage(data / name)

        assert send_concurrently(gateway, upstream, "POOR", 10)[0] == {200: 3, 402: 7}
        assert_signature_returns(upstream, [gateway] * 2, SESSION)
        assert all(is_sound(data / name) for name in files)
        assert b"sqlite3 cannot be used" not in gateway.request("GET", "/readyz").body
        assert_replacement_is_reported(gateway, "counters.sqlite3")
        if damage is not Path.unlink:  # without a file, it is like one without a first entry
            assert_replacement_is_reported(gateway, "calls.sqlite3")


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
