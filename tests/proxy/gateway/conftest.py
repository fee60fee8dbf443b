"""The gateway in this process, over real sockets: uvicorn in a thread, a ledger in a file.

One gateway, with its own data directory, serves each test file; each test brings its own model name
and the script that the upstream plays for it.
"""

import asyncio
import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from django.db import connections
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from proxy.gateway.snapshot.config_snapshot import directory
from proxy.ledger.recorder import recorder
from proxy.models import ApiKey, Exchange, Price, Revision, Route, RouteTarget, Team, Upstream
from proxy.server.http_protocol import HttpProtocol
from tests.fakes.servers.prepared import copy_ledger
from tests.fakes.upstreams.upstream import ScriptedUpstream

from . import upstream_scripts
from .budget_fixtures import MODEL, BudgetTeam
from .http_client import GatewayClient
from .process_state import new_process_state

PATIENT = {"connect_s": 60, "first_byte_s": 60, "idle_s": 60, "total_s": 120}
"""Timeouts that also a busy machine does not exceed."""
DIALECTS = ("responses", "chat", "anthropic")
UPSTREAM_SECRET = "sk-upstream-canary-0123456789"


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with all tables and no rows, which each test file copies."""
    data = tmp_path_factory.mktemp("empty-ledger") / "data"
    copy_ledger(data)
    return data / "ledger.sqlite3"


@pytest.fixture(scope="module")
def database(
    tmp_path_factory: pytest.TempPathFactory,
    django_db_blocker: DjangoDbBlocker,
    empty_ledger: Path,
) -> Iterator[Path]:
    """A data directory of this test file, with its ledger.

    The ledger is in a file, because each thread of the gateway opens its own connection.
    """
    folder = tmp_path_factory.mktemp("gateway")
    shutil.copy(empty_ledger, folder)
    secret = override_settings(SECRET_KEY="x" * 64)
    with (
        secret,
        django_db_blocker.unblock(),
        default_connection(folder / empty_ledger.name),
        new_process_state(folder),
    ):
        yield folder


@pytest.fixture
def missing_ledger(database: Path) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context manager: in its block, the ledger's file is missing, as after a lost disk."""

    @contextlib.contextmanager
    def moved_away() -> Iterator[None]:
        file = database / "ledger.sqlite3"
        away = file.rename(database / "moved-away.sqlite3")
        try:
            yield
        finally:
            away.rename(file)

    return moved_away


@contextlib.contextmanager
def default_connection(path: Path) -> Iterator[None]:
    """Let Django's default connection, in all threads, use the SQLite file at ``path``."""
    before = connections["default"]
    name = before.settings_dict["NAME"]
    before.settings_dict["NAME"] = str(path)
    connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        connections["default"].close()
        before.settings_dict["NAME"] = name
        connections["default"] = before


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def world(database: Path, scripted: ScriptedUpstream) -> Iterator[str]:
    """Create a team with a key, three upstreams and a route to each; return the key."""
    team = Team.objects.create(name="platform")
    _, secret = ApiKey.issue(team, "ada", scopes=["messages"])
    for dialect, base_url, profile in (
        ("responses", scripted.base_url, "openai"),
        ("chat", scripted.base_url, "generic"),
        ("anthropic", scripted.url, "anthropic"),
    ):
        add_route(f"{dialect}-*", add_upstream(dialect, dialect, base_url, profile))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GATEWAY_TESTS_SECRET", UPSTREAM_SECRET)
        yield secret


def add_upstream(
    name: str, dialect: str, base_url: str, profile: str = "generic", **fields: Any
) -> Upstream:
    return Upstream.objects.create(
        name=name,
        dialect=dialect,
        base_url=base_url,
        profile=profile,
        secret={"env": "GATEWAY_TESTS_SECRET"},
        **{"timeouts": PATIENT, **fields},
    )


def add_route(model: str, *upstreams: Upstream, team: Team | None = None) -> Route:
    route = Route.objects.create(model=model, team=team)
    for position, upstream in enumerate(upstreams):
        RouteTarget.objects.create(route=route, upstream=upstream, position=position)
    return route


class Server(uvicorn.Server):
    """A uvicorn server that another thread can wait for and stop."""

    def run_in(self, thread: threading.Thread) -> int:
        thread.start()
        deadline = time.monotonic() + 60
        while not self.started:
            assert thread.is_alive(), "the gateway did not start"
            assert time.monotonic() < deadline, "the gateway did not start in time"
            time.sleep(0.01)
        return int(self.servers[0].sockets[0].getsockname()[1])


@pytest.fixture(scope="module")
def gateway(world: str) -> Iterator[GatewayClient]:
    """A client of the running gateway, with the key of ``world``."""
    config = uvicorn.Config(
        "bridge_project.asgi:application",
        port=0,
        log_config=None,
        access_log=False,
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=2,
    )
    server = Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    port = server.run_in(thread)
    yield GatewayClient(port, world)
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive(), "the gateway did not stop"


@pytest.fixture
def reload(world: str) -> Callable[[], None]:
    """Make the gateway reload its configuration at once, not at its next poll."""

    def poll() -> None:
        directory.poll()
        assert directory.fresh, directory.fault

    return poll


@pytest.fixture
def deadlines(world: str, reload: Callable[[], None]) -> Iterator[Callable[..., None]]:
    """Shorten one timeout of upstreams of ``world``: ``deadlines(idle_s=1)``, ``("chat", idle_s=1)``.

    The others stay long, so that on a busy machine no other timeout ends the request.
    """

    def set_timeouts(*names: str, **shorter: float) -> None:
        chosen = Upstream.objects.filter(name__in=names or DIALECTS)
        chosen.update(timeouts=PATIENT | shorter)
        Revision.bump()  # ``update`` does not do it
        reload()

    yield set_timeouts
    set_timeouts()


@pytest.fixture
def priced(gateway: GatewayClient, scripted: ScriptedUpstream) -> str:
    """A model that costs 10 dollars a million output tokens; input is free."""
    scripted.on(MODEL, upstream_scripts.chat())
    chat = Upstream.objects.get(name="chat")
    since = datetime(2026, 1, 1, tzinfo=UTC).date()
    price = {"input": 0, "output": 10}
    Price.objects.get_or_create(upstream=chat, model=MODEL, since=since, defaults=price)
    return MODEL


@pytest.fixture
def cleo(gateway: GatewayClient, reload) -> BudgetTeam:
    return BudgetTeam(reload)


def row(request_id: str, *, within_s: float = 60, **expected: Any) -> Exchange:
    """Wait until the closed row of a request is in the ledger; check fields and return it."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = Exchange.objects.filter(pk=request_id, state="closed").first()
        if found is not None:
            assert {name: getattr(found, name) for name in expected} == expected
            return found
        time.sleep(0.02)
    raise AssertionError(f"{request_id} has no closed row; journal: {recorder.state()}")


def newest_row(**filters: Any) -> Exchange:
    """Wait for and return the newest closed row; for requests whose id the client has not received."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(Exchange.DoesNotExist):
            return Exchange.objects.filter(state="closed", **filters).latest("created")
        time.sleep(0.02)
    raise AssertionError(f"no closed row with {filters}")


def message(model: str, **fields: Any) -> Mapping[str, Any]:
    """Return a minimal request."""
    user = {"role": "user", "content": "Say hello."}
    return {"model": model, "max_tokens": 100, "messages": [user], **fields}
