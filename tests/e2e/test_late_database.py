"""D01: the database is away when the gateway starts, and comes later."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.crowd import chat_answer
from tests.fakes.gateway import Gateway, Reply
from tests.fakes.killing import config_for
from tests.fakes.outages import locked, stopped
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.record.postgres import Postgres

BACK_S = 60  # 1 or 2 of them are needed; the machine may be busy
IN_A_ROW = 8  # answers, so that each of two workers has given some of them
ASKED = json.dumps(
    {
        "model": "crowd",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "request number 1."}],
    }
).encode()

Away = Callable[[], AbstractContextManager[Any]]


@pytest.fixture
def player() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        running.choose(chat_answer)
        yield running


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    server.start()
    yield server
    server.stop()
    server.remove()


@contextlib.contextmanager
def moved_away(database: Path) -> Iterator[None]:
    """As a disk that is not mounted yet. What was there before is there again, and nothing else."""
    found = (path for path in database.parent.iterdir() if path.name.startswith(database.name))
    files = sorted(found, reverse=True)  # the database last: who finds it finds its log as well
    names = {path: path.with_name(f"away-{path.name}") for path in files}
    for path, other in names.items():
        path.rename(other)
    yield
    assert not database.exists(), "an empty ledger took the place of the real one"
    for path, other in names.items():
        other.rename(path)


def ask(gateway: Gateway, key: str = "") -> Reply:
    headers = {"content-type": "application/json"} | ({"x-api-key": key} if key else {})
    return gateway.ask("POST", "/v1/messages", ASKED, headers)


def readiness(gateway: Gateway) -> tuple[int, dict[str, Any]]:
    told = gateway.ask("GET", "/readyz")
    return told.status, json.loads(told.body)


def wait_until(gateway: Gateway, fits: Callable[[dict[str, Any]], bool]) -> None:
    """Each worker speaks of itself, and any of them may be asked."""
    deadline = time.monotonic() + BACK_S
    in_a_row = 0
    while in_a_row < IN_A_ROW:
        told = readiness(gateway)[1]
        in_a_row = in_a_row + 1 if fits(told) else 0
        assert time.monotonic() < deadline, (told, gateway.log)
        time.sleep(0 if in_a_row else 0.1)


def wait_until_well(gateway: Gateway) -> None:
    wait_until(gateway, lambda told: told["status"] == "ok" and not told["backlog"])


def await_refusal(gateway: Gateway) -> Reply:
    """What an unknown key is told by a worker that has the database back."""
    deadline = time.monotonic() + BACK_S
    while (reply := ask(gateway, "sk-br-unknown")).status == 503:
        assert time.monotonic() < deadline, gateway.log
        time.sleep(0.1)
    return reply


def serve_without(gateway: Gateway, away: Away) -> None:
    """A start while the database is away, and what clients see before and after its return."""
    with gateway:
        first = ask(gateway)
        wait_until_well(gateway)
    with away():
        gateway.start()
        meanwhile = [ask(gateway) for _ in range(3)]
        wait_until(gateway, lambda told: "the database cannot be" in str(told["degraded"]))
        assert readiness(gateway)[0] == 200
    wait_until_well(gateway)
    unknown = await_refusal(gateway)
    assert gateway.stop() == 0, gateway.log
    served = {reply.headers["request-id"] for reply in (first, *meanwhile)}
    rows = gateway.rows()

    assert {reply.status for reply in (first, *meanwhile)} == {200}
    assert unknown.status == 401
    assert {name: rows[name]["outcome"] for name in served} == dict.fromkeys(served, "completed")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("away", [locked, moved_away])
def test_known_keys_are_served_before_the_file_is_there(player, tmp_path: Path, away) -> None:
    gateway = Gateway(tmp_path / "gateway", config=config_for(player))
    database = tmp_path / "gateway" / "data" / "ledger.sqlite3"

    serve_without(gateway, lambda: away(database))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("workers", [1, 2])
def test_known_keys_are_served_before_the_server_is_there(
    player, tmp_path: Path, postgres: Postgres, workers: int
) -> None:
    gateway = Gateway(
        tmp_path / "gateway",
        config=config_for(player),
        environment={"DATABASE_URL": postgres.url},
        workers=workers,
    )

    serve_without(gateway, lambda: stopped(postgres))


@pytest.mark.timeout(240)
def test_an_unknown_key_is_told_to_come_again_and_a_first_start_is_made_up_for(
    player, tmp_path: Path, postgres: Postgres
) -> None:
    postgres.stop()
    gateway = Gateway(
        tmp_path / "gateway",
        config=config_for(player),
        environment={"DATABASE_URL": postgres.url},
        starts_with=503,
    )
    with gateway:
        told = readiness(gateway)[1]
        replies = [ask(gateway), ask(gateway, "sk-br-unknown")]
        postgres.start()
        wait_until_well(gateway)
        after = ask(gateway)

    assert told["status"] == "unavailable"
    for reply in replies:
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert json.loads(reply.body)["error"]["type"] == "api_error"
    assert after.status == 200
    assert "the database cannot be used" in gateway.log
    assert "user admin, password" in gateway.log
    assert "+ team e2e" in gateway.log


@pytest.mark.timeout(240)
def test_a_mistake_that_only_the_database_shows_ends_the_gateway_when_it_comes(
    player, tmp_path: Path, postgres: Postgres
) -> None:
    postgres.stop()
    gateway = Gateway(
        tmp_path / "gateway",
        config=config_for(player).replace('upstream = "chat"', 'upstream = "nobody"'),
        environment={"DATABASE_URL": postgres.url},
        starts_with=503,
    )
    with gateway:
        postgres.start()
        code = gateway.process.wait(BACK_S)

    assert code == 2
    assert "nobody" in gateway.log
    assert "Traceback" not in gateway.log
