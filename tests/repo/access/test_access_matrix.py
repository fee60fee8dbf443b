"""Compare the response to each role, URL and method with a table; every URL has a row (T09, T10).

Each request goes over a socket and through the router, as a client's does.
``access_matrix.txt`` is the table of the roles, ``scope_matrix.txt`` of keys with a single scope. After an intended change, remove the rows, generate them again
and review the difference: ``BRIDGE_WRITE_MATRIX=1 pytest -m slow tests/repo/access/test_access_matrix.py``.
"""

import base64
import os
import threading
from itertools import groupby
from pathlib import Path

import pytest
from django.conf import settings
from django.core.cache import cache
from django.urls import get_resolver

from proxy.gateway.snapshot.config_snapshot import Snapshot, directory
from proxy.ledger.recorder import recorder
from proxy.ledger.webhooks.outbox import record_test_event
from proxy.live.live_view_sync import live_view_sync
from proxy.models import (
    Budget,
    Drift,
    Pause,
    Price,
    Route,
    RouteTarget,
    SavedReport,
    Scope,
    Upstream,
    UpstreamPolicy,
    Webhook,
)
from proxy.permissions.roles import AUDITOR, MEMBER, OWNER
from proxy.routing import EXACT_PATHS
from tests import lanes
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories
from tests.urls import url_routes

from .test_write_matrix import VIEWS

TABLE = Path(__file__).with_name("access_matrix.txt")
SCOPE_TABLE = Path(__file__).with_name("scope_matrix.txt")
WRITING = bool(os.environ.get("BRIDGE_WRITE_MATRIX"))  # fills the table instead of comparing
METHODS = ("GET", "POST", "PUT", "DELETE")
KEYS = ("member_key", "other_key", "reports_key", "admin_key")
PEOPLE = ("staff", MEMBER, AUDITOR, OWNER, "root")
ROLES = ("anonymous", *KEYS, *PEOPLE)
OPEN = {
    "admin/login/", "admin/jsi18n/", "api/v1/schema/", "api/v1/docs/", "/", "/healthz", "/readyz",
    "/metrics", "/api/hello",
}  # fmt: skip
"""URLs that anonymous clients may read; they contain nothing about users."""


SCOPES = tuple(Scope.values)
"""The scopes of keys of the team platform, which has the rows, each with one scope."""


def rows(table=TABLE):
    """Return a table: URL -> method -> one word for each role or scope."""
    lines = [line.split() for line in table.read_text().splitlines() if line and line[0] != "#"]
    return {
        url: {method: tuple(words) for _, method, *words in of_url}
        for url, of_url in groupby(lines, key=lambda line: line[0])
    }


DJANGO = list(dict.fromkeys(url_routes(get_resolver("bridge_project.urls").url_patterns)))
GATEWAY = [*EXACT_PATHS, "/v1/models/claude-sonnet-5", "/v1/nowhere"]
"""URLs that the gateway answers before Django is called."""


def test_each_url_has_a_row_for_each_method():
    table = rows()

    assert {*DJANGO, *GATEWAY} - set(table) == set()
    assert {url for url in table if tuple(table[url]) != METHODS} == set()
    assert all(len(words) == len(ROLES) for row in table.values() for words in row.values())


REST = [url for url in DJANGO if url.startswith(("api/v1/", "v1/organizations/"))]
REST = [url for url in REST if f"{url}/" not in DJANGO]
"""URLs of the API; of two spellings of a path, the one with the last slash."""


def test_each_url_of_the_api_has_a_row_for_each_scope():
    table = rows(SCOPE_TABLE)

    assert set(table) == {*REST, *GATEWAY}
    assert {url for url in table if tuple(table[url]) != METHODS} == set()
    assert all(len(words) == len(SCOPES) for row in table.values() for words in row.values())


@pytest.mark.parametrize(
    ("scope", "prefixes"),
    [
        ("messages", ()),
        ("reports", ()),
        ("reports:read", ()),
        ("transcripts:read", ()),
        ("keys:write", ("api/v1/keys/",)),
        ("config:write", tuple(
            f"api/v1/{one}/" for one in (
                "teams", "models", "upstreams", "prices", "budgets", "pauses", "deliveries", "reports",
            )
        )),
    ],
)  # fmt: skip
def test_a_scope_writes_only_what_its_name_says(scope, prefixes):
    """A 400 is the response to an empty body by a caller who may write."""
    place = SCOPES.index(scope)
    writable = {
        url
        for url, row in rows(SCOPE_TABLE).items()
        if url in REST
        for method in ("POST", "DELETE")
        if row[method][place] not in REFUSED
    }

    assert {url for url in writable if not url.startswith(prefixes)} <= {"api/v1/exports/"}


def test_anonymous_clients_reach_only_public_urls():
    reachable = {
        url for url, row in rows().items() if any(words[0] == "ok" for words in row.values())
    }

    assert reachable <= OPEN


@pytest.mark.parametrize("role", [MEMBER, AUDITOR, "staff"])
def test_read_only_roles_cannot_write(role):
    place = ROLES.index(role)
    endings = ("/add/", "/change/", "/delete/", "/rotate/", "/revoke/", "<id>/password/", "/test/",
             "/purge/", "/invite/", "/send/")  # fmt: skip
    own = {"admin/proxy/apikey/<int:key_id>/revoke/"} if role == MEMBER else set()
    writable = {
        url
        for url, row in rows().items()
        if url.endswith(endings) and row["POST"][place] not in REFUSED
    }

    assert writable == own


REFUSED = {"403", "404", "405"}


@pytest.fixture
def send_as(send):
    """Return a function that sends a request as a role, and returns one word for the response."""
    return lambda *request: word_of(send(*request))


@pytest.fixture
def send():
    """Return a function that sends a request as a role; the database has one row of each model."""
    ben = factories.staff("ben", groups=(MEMBER,))
    key, own = factories.key("ben", user=ben)
    exchange = factories.record(
        key=key,
        body=factories.request_body(messages=MESSAGES),
        reads=READS,
        opening={"user": "ben", "session_id": "s1"},
    )
    upstream = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")
    route = Route.objects.create(model="claude-*")
    price = {"model": "qwen3", "since": "2026-01-01", "input": 1, "output": 1}
    webhook = Webhook(name="ops", url="http://127.0.0.1:9/", team=key.team, enabled=False)
    webhook.give_secret()
    webhook.save()
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
        "proxy/pause": Pause.objects.create(model="m", message="later"),
        "proxy/upstreampolicy": UpstreamPolicy.objects.create(kind="beta", name="b", action="drop"),
        "proxy/price": Price.objects.create(**price),
        "proxy/savedreport": SavedReport.objects.create(name="r", report="usage", team=key.team),
        "proxy/webhook": webhook,
        "proxy/webhookdelivery": record_test_event(webhook),
    }
    fillings = {
        "<path:session_id>": "s1",
        "<str:request_id>": exchange.pk,
        "<str:exchange_id>": exchange.pk,
        "<int:key_id>": str(key.pk),
        "<str:key_id>": f"apikey_{key.pk}",
        "<int:team_id>": str(key.team.pk),
        "<int:user_id>": str(ben.pk),
        "<int:view_id>": "0",
        "<int:upstream_id>": str(upstream.pk),
        "<int:route_id>": str(route.pk),
        "<int:price_id>": str(objects["proxy/price"].pk),
        "<int:pause_id>": str(objects["proxy/pause"].pk),
        "<str:report>": "r",
        "<int:webhook_id>": str(webhook.pk),
        "<int:delivery_id>": str(objects["proxy/webhookdelivery"].pk),
        "<str:team>": "platform",
        "<str:user>": "ben",
        "<str:upstream>": "vllm",
        "<str:budget_id>": f"budget_{objects['proxy/budget'].pk}",
        "<id>": str(ben.pk),
        "<path:content_type_id>": "0",
        "^(?P<app_label>auth|proxy)/$": "proxy/",
        "(?P<url>.*)$": "nowhere/",
        r"\A(?P<rest>(?s:.*))\Z": "nowhere",
        "api_keys/<str:ident>": f"api_keys/apikey_{key.pk}",
        "users/<str:ident>": "users/user_ben",
        "workspaces/<str:ident>": "workspaces/wrkspc_platform",
    }
    cache.clear()  # each test's keys have the same ids: the throttle would count their requests together
    clients = {role: ServedClient() for role in ROLES}
    headers = {
        "member_key": own,
        "other_key": factories.key("cleo", of="research")[1],
        "reports_key": factories.key("dashboard", scopes=["reports"])[1],
        "admin_key": factories.key("finance", of="research", scopes=["admin"])[1],
    }
    for scope in SCOPES:
        headers[scope] = factories.key(scope.replace(":", "-"), scopes=[scope])[1]
        clients[scope] = ServedClient()
    users = {
        "staff": factories.staff("olga"),
        MEMBER: ben,
        **{role: factories.staff(role, groups=(role,)) for role in (AUDITOR, OWNER)},
        "root": factories.superuser(),
    }

    def one(role, method, url, query=None, side="request", **more_headers):
        for model, row in objects.items():
            if f"admin/{model}/" in url:
                url = url.replace("<path:object_id>", str(row.pk))
        for pattern, value in {**fillings, "<str:side>": side}.items():
            url = url.replace(pattern, value)
        url = url.replace("<path:object_id>", "0")
        if query is None:
            part = next((part for part in QUERIES if url.startswith(part)), "")
            query = "" if url == INDEX else QUERIES.get(part, "")
        client = clients[role]
        if role in users and not has_session(client):
            client.force_login(users[role])
        sent_headers = {"x-api-key": headers[role]} if role in headers else {}
        return client.generic(method, f"/{url}{query}", headers={**sent_headers, **more_headers})

    return one


WORDS = "Which files are here?"
PICTURE = {
    "type": "image",
    "source": {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(b"\x89PNG\r\n\x1a\n" + WORDS.encode()).decode(),
    },
}
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": WORDS}, PICTURE]}]
CREATED = b'{"type":"response.created","response":{"id":"r"}}'
DELTA = (
    b'{"type":"response.output_text.delta","item_id":"m","output_index":0,"content_index":0,'
    b'"delta":"Two: a note and a map."}'
)
READS = tuple((400.0, b"data: " + event + b"\n\n") for event in (CREATED, DELTA))
"""The transcript of the request: a question, a picture that contains it, and an answer."""


def has_session(client):
    """Return whether the client is signed in; signing out leaves an empty cookie."""
    cookie = client.cookies.get(settings.SESSION_COOKIE_NAME)
    return cookie is not None and bool(cookie.value)


INDEX = "api/v1/"
QUERIES = {
    "admin/sessions/one/": "?id=s1", "admin/sessions/export/": "?id=s1",
    "api/v1/budgets": "", "api/v1/me": "", "api/v1/exports": "", "api/v1/schema": "", "api/v1/docs": "",
    "api/v1/requests/": "", "api/v1/keys": "", "api/v1/upstreams": "", "api/v1/prices": "", "api/v1/users": "", "api/v1/teams": "", "api/v1/models": "", "api/v1/sessions/": "",
    **dict.fromkeys(
        [f"api/v1/{one}" for one in ("keys", "teams", "users", "models", "upstreams", "prices", "pauses", "webhooks", "deliveries", "reports")], ""
    ),
    "api/v1/": "?from=2026-11-20&to=2026-11-21",
    "v1/organizations/usage_report/claude_code": "?starting_at=2026-11-20",
    "v1/organizations/usage_report": "?starting_at=2026-11-20T00:00:00Z&ending_at=2026-11-21T00:00:00Z",
    "v1/organizations/cost_report": "?starting_at=2026-11-20T00:00:00Z&ending_at=2026-11-21T00:00:00Z",
    "v1/organizations/analytics": "?starting_at=2026-11-20T00:00:00Z&ending_at=2026-11-21T00:00:00Z",
}  # fmt: skip


def word_of(response):
    """Return ``ok``, ``login`` (redirect to the sign-in), ``away`` (other redirect) or the status."""
    if response.status_code == 302:
        return "login" if "/login/" in response["Location"] else "away"
    return "ok" if response.status_code == 200 else str(response.status_code)


def methods(url):
    """Return the methods to send: in the fast lane PUT and DELETE only where a view handles DELETE.

    The other views handle them as GET, as Django's admin does, or reject them.
    """
    view = VIEWS[url]
    deletes = "delete" in getattr(view, "actions", ()) or hasattr(
        getattr(view, "cls", None), "delete"
    )
    return METHODS if lanes.is_slow() or deletes else METHODS[:2]


def in_lane(url):
    """Ask the paths of reports without their last slash, which have the same views, less often."""
    same_view = url.startswith("api/v1/") and f"{url}/" in DJANGO
    return pytest.param(url, marks=pytest.mark.slow) if same_view else url


@pytest.mark.repeated
@pytest.mark.django_db
@pytest.mark.parametrize("url", [in_lane(url) for url in DJANGO])
def test_each_response_to_a_role_matches_the_table(send_as, url):
    if WRITING and url in rows():
        return
    found = {method: tuple(send_as(role, method, url) for role in ROLES) for method in methods(url)}

    compare(url, found)


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("url", REST)
def test_each_response_to_a_scope_matches_the_table(send_as, url):
    if WRITING and url in rows(SCOPE_TABLE):
        return
    found = {method: tuple(send_as(one, method, url) for one in SCOPES) for method in METHODS}

    compare(url, found, SCOPE_TABLE)


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("url", [url for url in DJANGO if not url.startswith(("api/", "v1/"))])
def test_a_key_of_any_scope_opens_no_page(send_as, url):
    assert {send_as(scope, "GET", url) for scope in SCOPES} == {rows()[url]["GET"][0]}


@pytest.fixture
def gateway_in_process(transactional_db):
    """Yield the directory over this test's database; stop the gateway's threads afterwards.

    The database is emptied afterwards: the ledger's thread has a connection of its own, so a
    rollback of the test's connection does not undo its rows.
    """
    # The poller has a connection of its own, which does not see the rows of this test.
    directory._thread = threading.current_thread()
    directory.snapshot = Snapshot()
    yield directory
    directory._thread = None
    directory.snapshot, directory.fresh = Snapshot(), False
    live_view_sync.stop()
    recorder.stop()


@pytest.mark.repeated
@pytest.mark.parametrize("url", GATEWAY)
def test_the_gateway_accepts_keys_only(gateway_in_process, url):
    """A session grants no access to the gateway; a key of other scopes calls no model."""
    headers = keys()
    gateway_in_process.poll()

    def one(role, method):
        sent = {"x-api-key": headers[role]} if role in headers else {}
        response = ServedClient().generic(method, url, "{}", "application/json", headers=sent)
        return "ok" if response.status_code == 503 and url in OPEN else word_of(response)

    found = {method: tuple(one(role, method) for role in ROLES) for method in METHODS}
    of_scopes = {method: tuple(one(scope, method) for scope in SCOPES) for method in METHODS}

    compare(url, found)
    compare(url, of_scopes, SCOPE_TABLE)


def keys():
    """Create a key for each key role, and a route, so that model names resolve."""
    upstream = Upstream.objects.create(
        name="vllm", dialect="chat", base_url="http://127.0.0.1:9/v1"
    )
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=upstream)
    return {
        "member_key": factories.key("ben")[1],
        "other_key": factories.key("cleo", of="research")[1],
        "reports_key": factories.key("dashboard", scopes=["reports"])[1],
        "admin_key": factories.key("finance", of="research", scopes=["admin"])[1],
        **{scope: factories.key(scope.replace(":", "-"), scopes=[scope])[1] for scope in SCOPES},
    }


def compare(url, found, table=TABLE):
    if WRITING:
        if url not in rows(table):
            with table.open("a") as file:
                file.writelines(
                    f"{url} {method} {' '.join(words)}\n" for method, words in found.items()
                )
        return
    expected = rows(table)[url]
    assert found == {method: expected[method] for method in found}
