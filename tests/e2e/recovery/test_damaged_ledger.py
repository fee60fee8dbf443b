"""Reports and pages of a running gateway whose database is damaged: 503, never 500."""

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.urls import get_resolver

from tests.fakes.load.kill_process import wait_until_drained
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.servers.prepared import ADMIN_PASSWORD
from tests.fakes.servers.web_session import WebSession
from tests.fakes.upstreams.script_steps import json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.urls import url_routes

ROUTES = """
[[routes]]
model = "m"
targets = [{ upstream = "chat" }]
"""
REQUEST = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}
SIGN_IN = ("auth_user", "django_session", "proxy_apikey", "proxy_team", "django_content_type")
"""Tables without which no caller is known; a page then fails before it reads the ledger."""
PAGE_BYTES = 4_096
API = ("api/v1/", "v1/organizations/")


def urls(identifier: str) -> list[str]:
    """Return each URL of Django that reads, with the id of a request in place of each parameter."""
    routes = dict.fromkeys(url_routes(get_resolver("bridge_project.urls").url_patterns))
    filled = (re.sub("<[^>]*>", identifier, route) for route in routes if "(?P" not in route)
    return [one for one in filled if one.startswith((*API, "admin/")) and "logout" not in one]


@contextlib.contextmanager
def serving(folder: Path, **environment: str) -> Iterator[tuple[Gateway, WebSession, str]]:
    """Yield a gateway that has served a request, a session of its admin, and the request's id."""
    with ScriptedUpstream() as upstream:
        upstream.on("m", json_response(upstream_scripts.COMPLETION))
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, ROUTES)
        with Gateway(folder, config, environment) as gateway:
            body, headers = json.dumps(REQUEST).encode(), {"content-type": "application/json"}
            answer = gateway.request("POST", "/v1/messages", body, headers)
            wait_until_drained(gateway)
            session = WebSession(gateway).sign_in("admin", ADMIN_PASSWORD)
            yield gateway, session, answer.headers["request-id"]


def statuses(gateway: Gateway, session: WebSession, identifier: str) -> dict[str, int]:
    found = {}
    for url in urls(identifier):
        if url.startswith(API):
            reply = gateway.request("GET", f"/{url}")
        else:
            reply = session.send("GET", f"/{url}")
        found[url] = reply.status
        assert reply.status != 503 or "retry-after" in reply.headers, url
    return found


def damage(file: Path, is_damaged: Callable[[str], bool]) -> None:
    """Overwrite the root pages of tables and their indexes."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the WAL would repair the file
        tables = database.execute("SELECT tbl_name, rootpage FROM sqlite_master WHERE rootpage > 0")
        roots = [page for table, page in tables if is_damaged(table)]
    assert len(roots) > 10
    with file.open("r+b") as pages:
        for root in roots:
            pages.seek((root - 1) * PAGE_BYTES)
            pages.write(b"\xff" * PAGE_BYTES)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tables", ["all", "ledger"])
def test_no_report_or_page_fails_with_500_on_a_damaged_file(tmp_path: Path, tables: str):
    with serving(tmp_path / "gateway") as (gateway, session, identifier):
        file = gateway.folder / "data" / "ledger.sqlite3"
        damage(file, lambda table: tables == "all" or table not in SIGN_IN)
        found = statuses(gateway, session, identifier)
        health = gateway.request("GET", "/healthz").status

    assert {url: status for url, status in found.items() if status == 500} == {}
    assert [*found.values()].count(503) > 50
    assert health == 200
