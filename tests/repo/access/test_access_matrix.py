"""Compare the response to each role, URL and method with a table; every URL has a row (T09, T10).

Each request goes over a socket and through the router, as a client's does.
``access_matrix.txt`` is the table of the roles, ``scope_matrix.txt`` of keys with a single scope. After an intended change, remove the rows, generate them again
and review the difference: ``BRIDGE_WRITE_MATRIX=1 pytest -m slow tests/repo/access/test_access_matrix.py``.
"""

import os
import threading
from itertools import groupby
from pathlib import Path

import pytest
from django.urls import get_resolver

from proxy.gateway.snapshot.config_snapshot import Snapshot, directory
from proxy.ledger.recorder import recorder
from proxy.live.live_view_sync import live_view_sync
from proxy.models import (
    Route,
    RouteTarget,
    Upstream,
)
from proxy.permissions.roles import AUDITOR, MEMBER
from proxy.routing import EXACT_PATHS
from tests import lanes
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories
from tests.urls import url_routes

from .access_requests import ROLES, SCOPES, send, word_of
from .test_write_matrix import VIEWS

__all__ = ["send"]  # a fixture

TABLE = Path(__file__).with_name("access_matrix.txt")
SCOPE_TABLE = Path(__file__).with_name("scope_matrix.txt")
WRITING = bool(os.environ.get("BRIDGE_WRITE_MATRIX"))  # fills the table instead of comparing
METHODS = ("GET", "POST", "PUT", "DELETE")
OPEN = {
    "admin/login/", "admin/jsi18n/", "api/v1/schema/", "api/v1/docs/", "/", "/healthz", "/readyz",
    "/metrics", "/api/hello",
}  # fmt: skip
"""URLs that anonymous clients may read; they contain nothing about users."""


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
