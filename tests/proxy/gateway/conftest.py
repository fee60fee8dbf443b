"""The gateway in this process, over real sockets: uvicorn in a thread, a ledger in a file.

One gateway serves the whole package; each test brings its own model name and the script that the
upstream plays for it.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from django.core.management import call_command
from django.db import connections
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from proxy.conf import conf
from proxy.config.connections import GuardedConnection
from proxy.gateway.directory import directory
from proxy.models import ApiKey, Exchange, Price, Revision, Route, RouteTarget, Team, Upstream
from proxy.record.recorder import recorder
from tests.fakes.upstream import ScriptedUpstream

from . import scripts
from .browser import Browser
from .budgeted import MODEL, Cast

PATIENT = {"connect_s": 60, "first_byte_s": 60, "idle_s": 60, "total_s": 120}
"""Longer than any machine is too busy for."""
DIALECTS = ("responses", "chat", "anthropic")
UPSTREAM_SECRET = "sk-upstream-canary-0123456789"


@pytest.fixture(scope="package")
def database(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[Path]:
    """A ledger in a file: the gateway's threads each open it for themselves."""
    folder = tmp_path_factory.mktemp("gateway")
    before = connections["default"]
    name = before.settings_dict["NAME"]
    secret = override_settings(SECRET_KEY="x" * 64)
    with secret, django_db_blocker.unblock():
        before.settings_dict["NAME"] = str(folder / "ledger.sqlite3")
        connections["default"] = connections.create_connection("default")
        call_command("migrate", verbosity=0)
        recorder._directory = folder
        yield folder
        connections["default"].close()
        before.settings_dict["NAME"] = name
        connections["default"] = before


@pytest.fixture(scope="package")
def scripted() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture(scope="package")
def world(database: Path, scripted: ScriptedUpstream) -> str:
    """Ada's team with three upstreams and a route to each; returns her key."""
    os.environ["GATEWAY_TESTS_SECRET"] = UPSTREAM_SECRET
    team = Team.objects.create(name="platform")
    _, secret = ApiKey.issue(team, "ada", scopes=["messages"])
    for dialect, base_url, profile in (
        ("responses", scripted.base_url, "openai"),
        ("chat", scripted.base_url, "generic"),
        ("anthropic", scripted.url, "anthropic"),
    ):
        add_route(f"{dialect}-*", add_upstream(dialect, dialect, base_url, profile))
    return secret


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
    """uvicorn that can be waited for and stopped from another thread."""

    def run_in(self, thread: threading.Thread) -> int:
        thread.start()
        deadline = time.monotonic() + 60
        while not self.started:
            assert thread.is_alive(), "the gateway did not start"
            assert time.monotonic() < deadline, "the gateway did not start in time"
            time.sleep(0.01)
        return int(self.servers[0].sockets[0].getsockname()[1])


@pytest.fixture(scope="package")
def gateway(world: str) -> Iterator[Browser]:
    """A client of the running gateway, with Ada's key."""
    config = uvicorn.Config(
        "bridge_project.asgi:application",
        port=0,
        log_config=None,
        access_log=False,
        http=GuardedConnection,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=2,
    )
    server = Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    port = server.run_in(thread)
    yield Browser(port, world)
    server.should_exit = True
    thread.join(60)


@pytest.fixture
def tuned() -> Iterator[Callable[..., None]]:
    """Change figures of the configuration for one test: ``tuned(hold_s=0.2)``."""
    before: dict[str, Any] = {}

    def tune(**figures: Any) -> None:
        for name, value in figures.items():
            before.setdefault(name, getattr(conf, name))
            object.__setattr__(conf, name, value)

    yield tune
    for name, value in before.items():
        object.__setattr__(conf, name, value)


@pytest.fixture
def reload(world: str) -> Callable[[], None]:
    """Let the gateway see a change of configuration at once, not at its next poll."""

    def look() -> None:
        directory.look()
        assert directory.fresh, directory.fault

    return look


@pytest.fixture
def deadlines(world: str, reload: Callable[[], None]) -> Iterator[Callable[..., None]]:
    """Shorten one deadline of the world's upstreams, for what is about it: ``deadlines(idle_s=1)``.

    The others stay long, so that a busy machine ends nothing for another reason.
    """

    def give(**shorter: float) -> None:
        Upstream.objects.filter(name__in=DIALECTS).update(timeouts=PATIENT | shorter)
        Revision.rise()  # an update tells nobody
        reload()

    yield give
    give()


@pytest.fixture
def priced(gateway: Browser, scripted: ScriptedUpstream) -> str:
    """A model at 10 dollars a million output tokens and nothing for input."""
    scripted.on(MODEL, scripts.chat())
    chat = Upstream.objects.get(name="chat")
    since = datetime(2026, 1, 1, tzinfo=UTC).date()
    free = {"input": 0, "output": 10}
    Price.objects.get_or_create(upstream=chat, model=MODEL, since=since, defaults=free)
    return MODEL


@pytest.fixture
def cleo(gateway: Browser, reload) -> Cast:
    return Cast(reload)


def row(request_id: str, *, within_s: float = 60, **expected: Any) -> Exchange:
    """The closed row of a request, as soon as the drainer has moved it."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = Exchange.objects.filter(pk=request_id, state="closed").first()
        if found is not None:
            told = {name: getattr(found, name) for name in expected}
            assert told == expected
            return found
        time.sleep(0.02)
    raise AssertionError(f"{request_id} has no closed row; spool: {recorder.state()}")


def newest_row(**wanted: Any) -> Exchange:
    """For requests whose id the client never saw."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(Exchange.DoesNotExist):
            return Exchange.objects.filter(state="closed", **wanted).latest("created")
        time.sleep(0.02)
    raise AssertionError(f"no closed row with {wanted}")


def message(model: str, **fields: Any) -> Mapping[str, Any]:
    """The least that asks for an answer."""
    asked = {"role": "user", "content": "Say hello."}
    return {"model": model, "max_tokens": 100, "messages": [asked], **fields}
