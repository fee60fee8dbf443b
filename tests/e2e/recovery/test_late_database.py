"""D01: the database is unavailable when the gateway starts and becomes available later."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proxy.bootstrap.wait_for_database import LOCK
from tests.fakes.load.kill_process import config_for
from tests.fakes.load.load_client import chat_response
from tests.fakes.load.outages import locked, stopped
from tests.fakes.servers.gateway import Gateway, Reply
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.waiting import until

RECOVERY_S = 60  # 1 or 2 suffice on an idle machine
CONSECUTIVE = 8  # responses, so that both workers have sent some
BODY = json.dumps(
    {
        "model": "load",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "request number 1."}],
    }
).encode()

Outage = Callable[[], AbstractContextManager[Any]]


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        running.choose(chat_response)
        yield running


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    with Postgres(migrated=getattr(request, "param", True)) as server:
        yield server


@contextlib.contextmanager
def moved_away(database: Path) -> Iterator[None]:
    """Rename the database files, as if their disk were not mounted; rename them back at the end."""
    files_found = (
        path for path in database.parent.iterdir() if path.name.startswith(database.name)
    )
    # The database file comes last, so that its log exists whenever it exists.
    files = sorted(files_found, reverse=True)
    names = {path: path.with_name(f"away-{path.name}") for path in files}
    for path, hidden in names.items():
        path.rename(hidden)
    yield
    assert not database.exists(), "an empty ledger replaced the real one"
    for path, hidden in names.items():
        hidden.rename(path)


def send_request(gateway: Gateway, key: str = "") -> Reply:
    headers = {"content-type": "application/json"} | ({"x-api-key": key} if key else {})
    return gateway.request("POST", "/v1/messages", BODY, headers)


def readiness(gateway: Gateway) -> tuple[int, dict[str, Any]]:
    readiness_payload = gateway.request("GET", "/readyz")
    return readiness_payload.status, json.loads(readiness_payload.body)


def wait_until(gateway: Gateway, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until consecutive /readyz responses meet the condition; any worker may respond."""
    deadline = time.monotonic() + RECOVERY_S
    consecutive = 0
    while consecutive < CONSECUTIVE:
        readiness_payload = readiness(gateway)[1]
        consecutive = consecutive + 1 if condition(readiness_payload) else 0
        assert time.monotonic() < deadline, (readiness_payload, gateway.log)
        time.sleep(0 if consecutive else 0.1)


def wait_until_healthy(gateway: Gateway) -> None:
    wait_until(
        gateway,
        lambda readiness_payload: (
            readiness_payload["status"] == "ok" and not readiness_payload["backlog"]
        ),
    )


def await_refusal(gateway: Gateway) -> Reply:
    """Wait until a worker with the database rejects an unknown key; return the reply."""
    deadline = time.monotonic() + RECOVERY_S
    while (reply := send_request(gateway, "sk-br-unknown")).status == 503:
        assert time.monotonic() < deadline, gateway.log
        time.sleep(0.1)
    return reply


def serve_without(gateway: Gateway, outage: Outage) -> None:
    """Start the gateway during an outage and check client requests during and after it."""
    with gateway:
        first = send_request(gateway)
        wait_until_healthy(gateway)
    with outage():
        gateway.start()
        during = [send_request(gateway) for _ in range(3)]
        wait_until(
            gateway,
            lambda readiness_payload: (
                "the database cannot be" in str(readiness_payload["degraded"])
            ),
        )
        assert readiness(gateway)[0] == 200
    wait_until_healthy(gateway)
    unknown = await_refusal(gateway)
    assert gateway.stop() == 0, gateway.log
    served = {reply.headers["request-id"] for reply in (first, *during)}
    rows = gateway.rows()

    assert {reply.status for reply in (first, *during)} == {200}
    assert unknown.status == 401
    assert {name: rows[name]["outcome"] for name in served} == dict.fromkeys(served, "completed")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("outage", "workers"),
    [(moved_away, 1), pytest.param(moved_away, 2, marks=pytest.mark.slow),
     pytest.param(locked, 2, marks=pytest.mark.slow)],  # waits 20 s for the lock
)  # fmt: skip
def test_known_keys_work_while_the_sqlite_file_is_unavailable(
    upstream, tmp_path: Path, outage, workers: int
) -> None:
    gateway = Gateway(tmp_path / "gateway", config=config_for(upstream), workers=workers)
    database = tmp_path / "gateway" / "data" / "ledger.sqlite3"

    serve_without(gateway, lambda: outage(database))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("workers", [1, 2])
def test_known_keys_work_while_the_server_is_unavailable(
    upstream, tmp_path: Path, postgres: Postgres, workers: int
) -> None:
    gateway = Gateway(
        tmp_path / "gateway",
        config=config_for(upstream),
        environment={"DATABASE_URL": postgres.url},
        workers=workers,
    )

    serve_without(gateway, lambda: stopped(postgres))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("postgres", [False], indirect=True, ids=["empty"])
def test_unknown_key_gets_503_and_first_setup_runs_when_the_database_returns(
    upstream, tmp_path: Path, postgres: Postgres
) -> None:
    postgres.stop()
    gateway = Gateway(
        tmp_path / "gateway",
        config=config_for(upstream),
        environment={"DATABASE_URL": postgres.url},
        ready_status=503,
    )
    with gateway:
        readiness_payload = readiness(gateway)[1]
        replies = [send_request(gateway), send_request(gateway, "sk-br-unknown")]
        postgres.start()
        wait_until_healthy(gateway)
        after = send_request(gateway)

    assert readiness_payload["status"] == "unavailable"
    for reply in replies:
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert json.loads(reply.body)["error"]["type"] == "api_error"
    assert after.status == 200
    assert "the database cannot be used" in gateway.log
    assert "user admin, password" in gateway.log
    assert "+ team e2e" in gateway.log


@pytest.mark.timeout(240)
@pytest.mark.parametrize("postgres", [False], indirect=True, ids=["empty"])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_start_before_the_late_database_is_migrated_wait_for_it(
    upstream, tmp_path: Path, postgres: Postgres, workers: int
) -> None:
    url = postgres.url.removesuffix("postgres") + "late"
    gateway = Gateway(
        tmp_path / "gateway",
        config=config_for(upstream),
        environment={"DATABASE_URL": url},
        workers=workers,
        ready_status=503,
    )

    def accept_connections_after_the_first_attempt() -> None:
        until(lambda: "the database cannot be used" in gateway.log, lambda: gateway.log)
        server.execute("ALTER DATABASE late ALLOW_CONNECTIONS true")

    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "serve.log").touch()
    with (
        psycopg.connect(postgres.url, autocommit=True) as server,
        ThreadPoolExecutor() as pool,
    ):
        server.execute("CREATE DATABASE late")
        other_gateway = psycopg.connect(url)  # ``serve`` waits for the end of its start
        other_gateway.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        server.execute("ALTER DATABASE late ALLOW_CONNECTIONS false")
        accepting = pool.submit(accept_connections_after_the_first_attempt)
        with gateway:
            accepting.result()
            refused = send_request(gateway)
            other_gateway.close()
            wait_until_healthy(gateway)
            answered = send_request(gateway)

    assert gateway.log.count("the database is not ready yet: the database lacks") == workers
    assert (refused.status, answered.status) == (503, 200)


@pytest.mark.timeout(240)
def test_configuration_error_found_in_the_late_database_ends_the_gateway(
    upstream, tmp_path: Path, postgres: Postgres
) -> None:
    postgres.stop()
    gateway = Gateway(
        tmp_path / "gateway",
        config=config_for(upstream).replace('upstream = "chat"', 'upstream = "missing"'),
        environment={"DATABASE_URL": postgres.url},
        ready_status=503,
    )
    with gateway:
        postgres.start()
        code = gateway.process.wait(RECOVERY_S)

    assert code == 2
    assert "missing" in gateway.log
    assert "Traceback" not in gateway.log
