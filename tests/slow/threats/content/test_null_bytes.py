"""Null characters in URLs, on PostgreSQL, which raises an error for them."""

import os
from collections.abc import Iterator

import pytest

from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.servers.web_session import WebSession
from tests.repo.access.write_company import PEOPLE, fill

ADDRESSES = {
    "/admin/proxy/exchange/a%00b/change/": 404,
    "/admin/proxy/exchange/a%00b/part/?path=x": 404,
    "/admin/proxy/exchange/a%00b/body/request/": 404,
    "/admin/proxy/apikey/a%00b/change/": 404,
    "/admin/proxy/exchange/?team=%00": 400,
    "/admin/proxy/exchange/?older_than=%00": 302,
    "/admin/proxy/exchange/?user=%00": 200,
    "/admin/proxy/exchange/?q=%00": 200,
    "/admin/proxy/exchange/export.csv?team=%00": 400,
    "/admin/proxy/exchange/export.csv?older_than=%00": 400,
    "/admin/proxy/upstreampolicy/?kind__exact=%00": 400,
    "/admin/proxy/team/?q=%00": 200,
    "/admin/autocomplete/?app_label=proxy&model_name=budget&field_name=team&term=%00": 200,
    "/admin/live/rows/?known=a%00b": 200,
    "/admin/sessions/?q=%00": 200,
    "/admin/sessions/?team=%00": 200,
    "/admin/?tz=%00": 200,
    "/admin/?range=custom&from=%00&to=%00": 200,
    "/admin/sessions/one/?id=%00": 404,
    "/admin/search/?s=%00": 200,
    "/api/v1/teams/a%00b": 404,
    "/api/v1/users/a%00b": 404,
    "/api/v1/sessions/a%00b": 404,
    "/api/v1/requests/a%00b": 404,
    "/api/v1/requests/a%00b/transcript": 404,
    "/api/v1/requests/a%00b/raw/request": 404,
    "/api/v1/exports/a%00b": 404,
    "/api/v1/requests/?from=2026-11-01&to=2026-11-02&user=%00": 400,
    "/v1/organizations/users/user_a%00b": 404,
}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    server.start()
    yield server
    server.stop()
    server.remove()


def test_null_character_in_a_url_is_rejected(postgres, tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "DATABASE_URL", postgres.url)
    with Gateway(tmp_path, key="", environment={"DATABASE_URL": postgres.url}) as gateway:
        root = WebSession(gateway).sign_in(PEOPLE["root"][0], fill(gateway)["password"])

        found = {path: root.send("GET", path).status for path in ADDRESSES}
        log = gateway.log

    assert found == ADDRESSES
    assert "Traceback" not in log
