"""Compare the gateway's response to each role and scope with the tables of ``access_tables``."""

import threading

import pytest
from asgiref.sync import async_to_sync

from proxy.gateway.endpoints.lifespan import stop_services
from proxy.gateway.snapshot.config_snapshot import Snapshot, directory
from proxy.models import Route, RouteTarget, Upstream
from tests.fakes.servers.served_client import ServedClient
from tests.lanes import repeat
from tests.proxy.admin import factories

from .access_requests import PEOPLE, ROLES, SCOPES, word_of
from .access_tables import GATEWAY, METHODS, OPEN, SCOPE_TABLE, TABLE, compare


@pytest.fixture
def gateway_in_process(transactional_db):
    """Yield the directory over this test's database; stop the gateway's threads afterwards.

    The database is emptied afterwards: the ledger's thread has a connection of its own, so a
    rollback of the test's connection does not undo its rows.
    """
    # The poller has a connection of its own, which does not see the rows of this test.
    directory.thread = threading.current_thread()
    directory.snapshot = Snapshot()
    yield directory
    directory.thread = None
    directory.snapshot, directory.fresh = Snapshot(), False
    async_to_sync(stop_services)()


SENT = repeat(fast=METHODS[:2], slow=METHODS)
"""In the fast lane GET and POST: no path of the gateway handles another method."""


@pytest.mark.repeated
def test_the_gateway_accepts_keys_only(gateway_in_process):
    """A session grants no access to the gateway; a key of other scopes calls no model."""
    secrets = keys()
    clients = {caller: ServedClient() for caller in (*ROLES, *SCOPES)}
    for role in PEOPLE:
        clients[role].force_login(factories.staff(role, groups=(role,)))
    gateway_in_process.poll()

    def word(caller, method, url):
        headers = {"x-api-key": secrets[caller]} if caller in secrets else {}
        response = clients[caller].generic(method, url, "{}", "application/json", headers=headers)
        return "ok" if response.status_code == 503 and url in OPEN else word_of(response)

    for callers, table in ((ROLES, TABLE), (SCOPES, SCOPE_TABLE)):
        for url in GATEWAY:
            found = {m: {caller: word(caller, m, url) for caller in callers} for m in SENT}
            compare(url, found, callers, table)


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
