"""Admin URLs and forms with unsupported lookups and invalid values, and the resulting log.

The requests go to a gateway process; those with a null character and those of ``REFUSED`` go to one
on PostgreSQL, which raises an error for null characters. The last test reads the whole log: each
rejected request has one line, and there is no traceback.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.urls import reverse

from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.servers.web_session import WebSession
from tests.lanes import repeat
from tests.repo.access.write_company import PEOPLE, QUICK_PASSWORDS, fill

admin.autodiscover()
LISTS = {model._meta.label_lower.replace(".", "/"): one for model, one in admin.site._registry.items()}  # fmt: skip
SECRET_COLUMNS = {
    "proxy/apikey": ("digest", "digest__gt", "digest__isnull", "prefix__contains", "successor__digest__gt",
                     "team__keys__digest__gt", "user__password__contains"),
    "proxy/budget": ("key__digest__gt",),
    "proxy/webhook": ("secret__contains", "secret__env__startswith", "url__contains"),
    "proxy/webhookdelivery": ("webhook__secret__contains", "webhook__url__contains", "event__body__contains"),
    "proxy/upstream": ("secret__contains", "secret__sealed__contains", "secret__file__startswith"),
    "proxy/savedreport": ("query__contains", "user__password__contains", "team__keys__digest__gt"),
    "proxy/pause": ("upstream__secret__contains", "upstream__id__gt", "message__contains"),
    "proxy/auditentry": ("changes__contains", "detail__contains", "id__gt", "user__contains"),
    "proxy/route": ("targets__upstream__secret__contains",),
    "proxy/price": ("upstream__secret__contains", "upstream__id__gt"),
    "proxy/exchange": ("digest__gt", "team__contains", "preview__contains"),
    "proxy/drift": ("first_seen__date", "first_seen__year", "name__contains"),
    "auth/user": ("password", "password__contains", "groups__name__contains", "last_login__gt"),
    "auth/group": ("permissions__codename", "user__password__contains"),
}  # fmt: skip
OFFERED = {
    "proxy/apikey": "team__id__exact=1", "proxy/budget": "hard__exact=1", "proxy/upstream": "enabled__exact=1",
    "proxy/price": "upstream__isnull=True", "proxy/upstreampolicy": "action__exact=drop",
    "proxy/drift": "first_seen__gte=2026-01-01+00:00:00%2B00:00&first_seen__lt=2027-01-01+00:00:00%2B00:00",
    "proxy/webhook": "enabled__exact=1", "proxy/webhookdelivery": "state__exact=waiting&webhook__id__exact=1",
    "auth/user": "groups__id__exact=1", "proxy/exchange": "team=platform&result=failed",
    "proxy/auditentry": "did=readings&user=ada&of_team=platform&model=key",
}  # fmt: skip
HUGE = "9" * 5_000
INVALID_VALUES = ("a", "%00", "-1", HUGE, "1e400", "0001-01-01T00:00:00%2B23:59", "9999-12-31T23:59:59-23:59",
       "%F0%9F", "%ED%A0%80", "null", "a+" * 3_000)  # fmt: skip
STEP = repeat(fast=len(INVALID_VALUES), slow=1)
"""A list gets one of these values, the next list another one; in the slow lane all of them."""
COLUMN_STEP = repeat(fast=4, slow=1)
EVERYWHERE = ("q", "p", "o", "e", "all", "_popup", "_to_field", "_facets", "_changelist_filters")
ADDRESSES = {
    f"proxy/apikey/{HUGE}/change/": 302, f"proxy/apikey/{HUGE[:40]}/rotate/": 404, "proxy/apikey/a%00b/change/": 404,
    "proxy/exchange/a%00b/change/": 404, "proxy/exchange/a%00/part/?path=x": 404, "auth/user/a/password/": 404,
    "proxy/exchange/export.csv?team=%00": 400, "proxy/exchange/export.csv?nope=1": 400,
    "proxy/apikey/1/change/?_to_field=digest": 400, "live/rows/?known=%00,a": 200, f"r/{HUGE}/1/": 404,
    "autocomplete/?app_label=proxy&model_name=budget&field_name=team&term=%00": 200,
    f"autocomplete/?app_label=proxy&model_name=budget&field_name=team&page={HUGE}": 404,
    "autocomplete/?app_label=proxy&model_name=apikey&field_name=digest&term=a": 403, "autocomplete/?app_label=x": 403,
    "proxy/budget/add/?team=a&key=" + HUGE: 200, "proxy/apikey/add/?user=a&team=a": 200,
    "proxy/drift/?" + "&".join(f"kind__exact={n}" for n in range(990)): 200,
    "proxy/drift/?" + "&".join(f"kind__exact={n}" for n in range(1_200)): 400,
}  # fmt: skip
BAD_JSON = ("[" * 5_000, "{", '"\\ud800"', '{"a": "\\u0000"}', HUGE, "NaN", "1e999999")


@contextlib.contextmanager
def company_gateway(folder: Path, **database: str) -> Iterator[Any]:
    with Gateway(folder, key="", environment=QUICK_PASSWORDS | database) as gateway:
        company = fill(gateway)
        gateway.people = {  # type: ignore[attr-defined]
            role: WebSession(gateway).sign_in(PEOPLE[role][0], company["password"])
            for role in ("root", "member")
        }
        gateway.ids = company["ids"]  # type: ignore[attr-defined]
        yield gateway


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with company_gateway(tmp_path_factory.mktemp("queries")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A gateway on PostgreSQL that has not logged any line of ``REFUSED`` yet.

    A gateway logs equal lines only once a minute, and most other tests cause the same lines.
    """
    folder = tmp_path_factory.mktemp("quiet")
    with Postgres() as server, pytest.MonkeyPatch.context() as environment:
        environment.setenv("DATABASE_URL", server.url)  # for the program that fills the database
        with company_gateway(folder, DATABASE_URL=server.url) as gateway:
            yield gateway


def lists() -> list[str]:
    return sorted(LISTS)


def test_tests_cover_every_admin_list():
    assert set(SECRET_COLUMNS) | {"proxy/team", "proxy/upstreampolicy"} == set(LISTS)
    filtered = {name for name, one in LISTS.items() if one.list_filter or name == "proxy/apikey"}
    assert filtered == set(OFFERED)


@pytest.mark.repeated
@pytest.mark.parametrize("model", lists())
def test_list_accepts_only_its_own_filters(served, model):
    root = served.people["root"]
    columns = [f"{field.name}__gt" for field in LISTS[model].opts.get_fields()][::COLUMN_STEP]

    for lookup in (*columns, *SECRET_COLUMNS.get(model, ())):
        answer = root.send("GET", f"/admin/{model}/?{lookup}=a")
        assert answer.status == 400, lookup
    if model in OFFERED:
        assert root.send("GET", f"/admin/{model}/?{OFFERED[model]}").status == 200


@pytest.mark.repeated
@pytest.mark.parametrize("model", lists())
def test_invalid_filter_values_are_rejected_or_ignored(served, model):
    root = served.people["root"]
    offered = [part.partition("=")[0] for part in OFFERED.get(model, "").split("&") if part]

    statuses = {
        (name, value[:20]): root.send("GET", f"/admin/{model}/?{name}={value}").status
        for name in (*offered, *EVERYWHERE)
        for value in INVALID_VALUES[lists().index(model) % STEP :: STEP]
    }

    assert set(statuses.values()) <= {200, 302, 400}
    assert {one: status for one, status in statuses.items() if status == 400 and one[0] in EVERYWHERE} == {
        one: 400 for one in statuses if one[0] in {"_changelist_filters", "_to_field"}
    }  # fmt: skip


def test_other_invalid_urls_get_these_statuses(served):
    found = {path: served.people["root"].send("GET", f"/admin/{path}").status for path in ADDRESSES}

    assert found == ADDRESSES


@pytest.mark.parametrize("text", BAD_JSON, ids=range(len(BAD_JSON)))
@pytest.mark.parametrize(
    ("model", "field"), [("budget", "emails"), ("upstream", "extra_body")]
)  # fmt: skip
def test_json_that_cannot_be_stored_is_a_field_error(served, model, field, text):
    answer = served.people["root"].send("POST", f"/admin/proxy/{model}/add/", {field: text})

    assert answer.status == 200
    assert re.search(rf'id="?id_{field}"?', answer.body.decode())


def test_empty_json_field_becomes_the_empty_value(served):
    body = {"team": served.ids["attic"], "usd": "1", "period": "day", "zone": "UTC",
            "emails": "", "notices-TOTAL_FORMS": 0, "notices-INITIAL_FORMS": 0}  # fmt: skip

    answer = served.people["root"].send("POST", "/admin/proxy/budget/add/", body)

    assert answer.status == 302, answer.body


REFUSED = (
    ("member", "GET", "/admin/proxy/team/", b"", 403),
    ("member", "GET", "/admin/storage/", b"", 403),
    ("member", "POST", "/admin/proxy/budget/add/", b"a=1", 403),
    ("member", "GET", "/admin/proxy/exchange/nowhere/change/", b"", 404),
    ("member", "GET", "/admin/nowhere/", b"", 404),
    ("member", "PUT", "/admin/live/", b"", 405),
    ("member", "POST", "/admin/live/rows/", b"a=1", 405),
    ("member", "GET", "/admin/proxy/apikey/?digest__gt=a", b"", 400),
    ("member", "GET", "/admin/proxy/apikey/?_to_field=digest", b"", 400),
    ("member", "POST", "/admin/login/", b"&".join(b"a%d=1" % n for n in range(1_100)), 400),
    ("member", "POST", "/admin/login/", b"a=" + b"1" * 3_000_000, 413),
    ("anonymous", "POST", "/admin/login/", b"a=1", 403),
    ("anonymous", "POST", "/api/v1/teams", b"{}", 401),
    ("member", "POST", "/api/v1/teams", b"{}", 403),
    ("root", "POST", "/api/v1/teams", b"{", 400),
    ("root", "GET", "/api/v1/teams/nowhere", b"", 404),
    ("root", "PUT", "/api/v1/teams", b"{}", 405),
    ("anonymous", "POST", "/v1/messages", b"{", 401),
    ("anonymous", "GET", "/v1/nowhere", b"", 404),
)
"""Caller, method, path, body and expected status."""


@pytest.mark.parametrize("refused", REFUSED, ids=lambda one: " ".join(one[:3])[:60])
def test_rejected_request_has_at_most_one_log_line(quiet, refused):
    who, method, path, body, status = refused
    caller = quiet.people.get(who) or WebSession(quiet)
    kind = "application/json" if path.startswith(("/api", "/v1")) else "application/x-www-form-urlencoded"  # fmt: skip
    before = len(quiet.log)

    answer = caller.send(method, path, body, kind)

    assert answer.status == status
    lines = quiet.log[before:].splitlines()
    assert len(lines) <= 1, lines
    if status == 413:  # rejected before Django because of its size
        assert lines == []
    elif path.startswith("/admin/"):
        assert path.partition("?")[0] in lines[0] or "digest" in lines[0] or "exceeded" in lines[0]


NULL_CHARACTERS = {
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


def test_null_character_in_a_url_is_rejected(quiet):
    root = quiet.people["root"]

    found = {path: root.send("GET", path).status for path in NULL_CHARACTERS}

    assert found == NULL_CHARACTERS
    assert "Traceback" not in quiet.log


def test_invalid_form_body_has_one_log_line(served):
    before = len(served.log)

    answer = served.people["member"].send(
        "POST", reverse("admin:login"), b"--x\r\ninvalid", "multipart/form-data; boundary="
    )

    assert answer.status == 400
    assert len(served.log[before:].splitlines()) == 1


def test_log_has_no_traceback(served, quiet):
    for gateway in (served, quiet):
        assert "Traceback" not in gateway.log
        assert "Error" not in gateway.log
