"""Every URL, every method, every role: what the table says, and no URL without a row (T09, T10).

Each request goes over a socket and through the router, as a client's does.
``access_matrix.txt`` is the table. After a change that is meant, write it anew and read the
difference (remove the rows first): ``BRIDGE_WRITE_MATRIX=1 pytest tests/house/test_access_matrix.py``.
"""

import os
import threading
from itertools import groupby
from pathlib import Path

import pytest
from django.core.cache import cache
from django.urls import get_resolver

from proxy.gateway.directory import Snapshot, directory
from proxy.gateway.reporting import metrics
from proxy.live.messenger import messenger
from proxy.models import (
    Budget,
    Drift,
    Price,
    Route,
    RouteTarget,
    Upstream,
    UpstreamPolicy,
)
from proxy.record.recorder import recorder
from proxy.roles import AUDITOR, MEMBER, OWNER
from proxy.routing import EXACT
from tests.fakes.served_client import ServedClient
from tests.proxy.admin import cast
from tests.urls import routes

TABLE = Path(__file__).with_name("access_matrix.txt")
WRITING = bool(os.environ.get("BRIDGE_WRITE_MATRIX"))  # fills the table instead of comparing
METHODS = ("GET", "POST", "PUT", "DELETE")
KEYS = ("member_key", "other_key", "reports_key", "admin_key")
PEOPLE = ("staff", MEMBER, AUDITOR, OWNER, "root")
ROLES = ("nobody", *KEYS, *PEOPLE)
OPEN = {
    "admin/login/", "admin/jsi18n/", "api/v1/schema/", "api/v1/docs/", "/", "/healthz", "/readyz",
    "/metrics", "/api/hello",
}  # fmt: skip
"""What answers anybody: pages that say nothing about anybody."""


def rows():
    """URL -> method -> one word for each role."""
    lines = [line.split() for line in TABLE.read_text().splitlines() if line and line[0] != "#"]
    return {
        url: {method: tuple(words) for _, method, *words in of_url}
        for url, of_url in groupby(lines, key=lambda line: line[0])
    }


DJANGO = list(dict.fromkeys(routes(get_resolver("bridge_project.urls").url_patterns)))
GATEWAY = [*EXACT, "/v1/models/claude-sonnet-5", "/v1/nowhere"]
"""What the gateway answers ahead of Django."""


def test_each_url_has_a_row_for_each_method():
    table = rows()

    assert {*DJANGO, *GATEWAY} - set(table) == set()
    assert {url for url in table if tuple(table[url]) != METHODS} == set()
    assert all(len(words) == len(ROLES) for row in table.values() for words in row.values())


def test_nobody_gets_in_anywhere_but_where_nothing_is_said():
    let_in = {url for url, row in rows().items() if any(words[0] == "ok" for words in row.values())}

    assert let_in <= OPEN


@pytest.mark.parametrize("role", [MEMBER, AUDITOR, "staff"])
def test_whoever_only_reads_writes_nowhere(role):
    place = ROLES.index(role)
    doors = ("/add/", "/change/", "/delete/", "/rotate/", "/revoke/", "<id>/password/", "/test/",
             "/purge/")  # fmt: skip
    open_doors = {
        url
        for url, row in rows().items()
        if url.endswith(doors) and row["POST"][place] not in REFUSED
    }

    assert open_doors == set()


REFUSED = {"403", "404", "405"}


@pytest.fixture
def ask():
    """Ask as a role: one request of Ben's on platform's books, everything else beside it."""
    ben = cast.staff("ben", groups=(MEMBER,))
    key, own = cast.key("ben", user=ben)
    exchange = cast.record(key=key, opening={"user": "ben", "session_id": "s1"})
    upstream = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")
    route = Route.objects.create(model="claude-*")
    price = {"model": "qwen3", "since": "2026-01-01", "input": 1, "output": 1}
    objects = {
        "auth/group": ben.groups.get(),
        "auth/user": ben,
        "proxy/budget": Budget.objects.create(team=key.team, usd=10),
        "proxy/team": key.team,
        "proxy/apikey": key,
        "proxy/exchange": exchange,
        "proxy/upstream": upstream,
        "proxy/route": route,
        "proxy/drift": Drift.objects.create(
            kind="beta", name="b", first_seen=exchange.created, last_seen=exchange.created
        ),
        "proxy/upstreampolicy": UpstreamPolicy.objects.create(kind="beta", name="b", action="drop"),
        "proxy/price": Price.objects.create(**price),
    }
    fillings = {
        "<path:session_id>": "s1",
        "<str:request_id>": exchange.pk,
        "<str:exchange_id>": exchange.pk,
        "<str:side>": "request",
        "<int:key_id>": str(key.pk),
        "<int:view_id>": "0",
        "<int:upstream_id>": str(upstream.pk),
        "<int:route_id>": str(route.pk),
        "<int:price_id>": str(objects["proxy/price"].pk),
        "<str:team>": "platform",
        "<str:user>": "ben",
        "<str:upstream>": "vllm",
        "<str:budget_id>": str(objects["proxy/budget"].pk),
        "<id>": str(ben.pk),
        "<path:content_type_id>": "0",
        "^(?P<app_label>auth|proxy)/$": "proxy/",
        "(?P<url>.*)$": "nowhere/",
        r"\A(?P<rest>(?s:.*))\Z": "nowhere",
        "api_keys/<str:ident>": f"api_keys/apikey_{key.pk}",
        "users/<str:ident>": "users/user_ben",
        "workspaces/<str:ident>": "workspaces/wrkspc_platform",
    }
    cache.clear()  # each test's keys have the same ids: the throttle would add their requests up
    clients = {role: ServedClient() for role in ROLES}
    headers = {
        "member_key": own,
        "other_key": cast.key("cleo", of="research")[1],
        "reports_key": cast.key("board", scopes=["reports"])[1],
        "admin_key": cast.key("finance", of="research", scopes=["admin"])[1],
    }
    users = {
        "staff": cast.staff("olga"),
        MEMBER: ben,
        **{role: cast.staff(role, groups=(role,)) for role in (AUDITOR, OWNER)},
        "root": cast.superuser(),
    }

    def one(role, method, url):
        for model, row in objects.items():
            if f"admin/{model}/" in url:
                url = url.replace("<path:object_id>", str(row.pk))
        for pattern, value in fillings.items():
            url = url.replace(pattern, value)
        url = url.replace("<path:object_id>", "0")
        query = QUERIES.get(next((part for part in QUERIES if url.startswith(part)), ""), "")
        client = clients[role]
        if role in users:
            client.force_login(users[role])
        told = {"x-api-key": headers[role]} if role in headers else {}
        return word_of(client.generic(method, f"/{url}{query}", headers=told))

    return one


QUERIES = {
    "admin/sessions/one/": "?id=s1", "admin/sessions/export/": "?id=s1",
    "api/v1/budgets": "", "api/v1/me": "", "api/v1/exports": "", "api/v1/schema": "", "api/v1/docs": "",
    "api/v1/requests/": "", "api/v1/keys": "", "api/v1/upstreams": "", "api/v1/prices": "", "api/v1/users": "", "api/v1/teams": "", "api/v1/models": "", "api/v1/sessions/": "",
    **dict.fromkeys(
        [f"api/v1/{one}" for one in ("keys", "teams", "users", "models", "upstreams", "prices")], ""
    ),
    "api/v1/": "?from=2026-11-20&to=2026-11-21",
    "v1/organizations/usage_report/claude_code": "?starting_at=2026-11-20",
    "v1/organizations/usage_report": "?starting_at=2026-11-20T00:00:00Z&ending_at=2026-11-21T00:00:00Z",
    "v1/organizations/cost_report": "?starting_at=2026-11-20T00:00:00Z&ending_at=2026-11-21T00:00:00Z",
    "v1/organizations/analytics": "?starting_at=2026-11-20T00:00:00Z&ending_at=2026-11-21T00:00:00Z",
}  # fmt: skip


def word_of(answer):
    """``ok``, ``login`` (sent to the sign-in), ``away`` (sent elsewhere) or the status."""
    if answer.status_code == 302:
        return "login" if "/login/" in answer["Location"] else "away"
    return "ok" if answer.status_code == 200 else str(answer.status_code)


@pytest.mark.django_db
@pytest.mark.parametrize("url", DJANGO)
def test_each_role_is_answered_as_the_table_says(ask, url):
    if WRITING and url in rows():
        return
    found = {method: tuple(ask(role, method, url) for role in ROLES) for method in METHODS}

    compare(url, found)


@pytest.fixture
def gateway_in_process(transactional_db):
    """The directory of this test's database; what the gateway starts by itself ends with it.

    A database that is emptied afterwards, for the ledger's thread writes rows that no rollback of
    this test's own connection takes back.
    """
    # Its poller would look through a connection of its own, which sees nothing of this test.
    directory._thread = threading.current_thread()
    directory.snapshot = Snapshot()
    yield directory
    directory._thread = None
    directory.snapshot, directory.fresh = Snapshot(), False
    messenger.stop()
    metrics.stop()
    recorder.stop()


@pytest.mark.parametrize("url", GATEWAY)
def test_the_gateway_knows_keys_only(gateway_in_process, url):
    """No session, whoever's, opens anything there; a key of the other scopes calls no model."""
    headers = keys()
    gateway_in_process.look()

    def one(role, method):
        sent = {"x-api-key": headers[role]} if role in headers else {}
        answer = ServedClient().generic(method, url, "{}", "application/json", headers=sent)
        return "ok" if answer.status_code == 503 and url in OPEN else word_of(answer)

    found = {method: tuple(one(role, method) for role in ROLES) for method in METHODS}

    compare(url, found)


def keys():
    """A key for each of the columns that are keys; with a route, so that names lead somewhere."""
    upstream = Upstream.objects.create(
        name="vllm", dialect="chat", base_url="http://127.0.0.1:9/v1"
    )
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=upstream)
    return {
        "member_key": cast.key("ben")[1],
        "other_key": cast.key("cleo", of="research")[1],
        "reports_key": cast.key("board", scopes=["reports"])[1],
        "admin_key": cast.key("finance", of="research", scopes=["admin"])[1],
    }


def compare(url, found):
    if WRITING:
        with TABLE.open("a") as table:
            table.writelines(
                f"{url} {method} {' '.join(words)}\n" for method, words in found.items()
            )
        return
    assert found == rows()[url]
