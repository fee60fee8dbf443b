"""Doors that stay shut: foreign hosts, other people's pages, cells and searches, unlimited ways in."""

import itertools
import json
import re

import pytest
from django.test import Client
from django.urls import URLResolver, get_resolver
from hypothesis import given
from hypothesis import strategies as st

from proxy.models import ApiKey
from proxy.record import export
from proxy.reports.answers import cell, csv_lines
from tests.proxy.admin import cast
from tests.proxy.gateway import scripts
from tests.proxy.gateway.conftest import message

HOSTS = (
    "evil.example", "localhost.evil.example", "evil.example#localhost", "evil.example?localhost", "evil.example/localhost",
    "localhost@evil.example", "evil.example\\localhost", "localhost:99999999", "localhost:x", "local host", "localhost, evil.example",
    "localhost/admin/", "localhost\t", "[::1", "[::1]evil", "*", "..", ".localhost", "127.0.0.1.evil.example", "0x7f.1", "",
)  # fmt: skip
HARMLESS = {"", "localhost\t", "localhost:99999999"}  # they say no other name than ours
PATHS = ("/admin/", "/admin/proxy/exchange/", "/api/v1/summary/", "/v1/organizations/me")
ODD_PATHS = (
    "//admin/", "/admin//", "/%61dmin/", "/admin/%2e%2e/admin/", "/healthz/../admin/", "/healthz%2f..%2fadmin/", "/admin;x/",
    "/admin/./", "/v1/models/../../admin/", "/v1/models/%2e%2e%2f%2e%2e%2fadmin/", "/metrics/../api/v1/requests/", "/ADMIN/",
    "/api/v1/../../admin/", "/v1/organizations/../messages", "/readyz;/admin/", "/admin/.", "/admin%00/", "/.//admin/",
)  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("path", PATHS)
def test_a_foreign_host_is_refused_and_never_believed(host, path):
    client = Client()
    client.force_login(cast.superuser())

    answer = client.get(path, headers={"host": host})

    if answer.status_code == 200:
        assert host in HARMLESS
    else:
        assert answer.status_code in {302, 400, 401}
        assert "evil.example" not in answer.headers.get("location", "")


@pytest.mark.django_db
@pytest.mark.parametrize("path", ODD_PATHS)
@pytest.mark.parametrize("host", ["localhost", "localhost:80/healthz?", "x/healthz#"])
def test_no_spelling_of_a_path_opens_a_protected_page(path, host):
    answer = Client().get(path, headers={"host": host})

    assert answer.status_code in {301, 302, 400, 401, 404}
    assert "evil" not in answer.headers.get("location", "")
    if answer.status_code in {301, 302}:
        assert answer.headers["location"].startswith("/admin/")
        assert not answer.headers["location"].startswith("//")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "where",
    [
        "//evil.example/",
        "https://evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
        "\x09//evil.example",
    ],
)
def test_a_sign_in_leads_nowhere_but_here(where):
    olga = cast.staff("olga")
    olga.set_password("a long enough password")
    olga.save()

    answer = Client().post(
        "/admin/login/", {"username": "olga", "password": "a long enough password", "next": where}
    )

    assert answer.status_code == 302
    assert answer["location"].startswith("/admin/")


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/models", "/v1/messages/count_tokens", "/healthz"]
)
@pytest.mark.parametrize("method", ["OPTIONS", "POST", "GET"])
def test_a_page_of_another_origin_is_allowed_nothing(gateway, path, method):
    told = {
        "origin": "https://evil.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "x-api-key",
        "access-control-request-private-network": "true",
    }

    reply = gateway.ask(
        method, path, b"{}" if method == "POST" else None, told | {"x-api-key": gateway.key}
    )

    assert not [name for name in reply.headers if name.startswith("access-control-")]


@pytest.mark.django_db
def test_the_reports_allow_no_other_origin_and_no_cookie_without_its_token():
    client = Client(enforce_csrf_checks=True)
    client.force_login(cast.superuser())

    answer = client.get("/api/v1/me/", headers={"origin": "https://evil.example"})
    forged = client.post("/admin/auth/user/add/", {"username": "eve"})

    assert not answer.has_header("access-control-allow-origin")
    assert forged.status_code == 403


def plain_pages(patterns, above=""):
    for pattern in patterns:
        route = above + str(pattern.pattern).lstrip("^")
        if isinstance(pattern, URLResolver):
            yield from plain_pages(pattern.url_patterns, route)
        elif "<" not in route and "(" not in route and route.startswith("admin/"):
            yield "/" + route


PAGES = sorted(set(plain_pages(get_resolver("bridge_project.urls").url_patterns)))


@pytest.mark.django_db
def test_every_page_of_the_admin_forbids_frames_sniffing_and_foreign_scripts():
    client = Client()
    client.force_login(cast.superuser())
    wrong = {}
    for page in PAGES:
        answer = client.get(page)
        if answer.status_code != 200:
            continue
        headers = {name.lower(): value for name, value in answer.headers.items()}
        policy = headers.get("content-security-policy", "")
        expected = {
            "x-frame-options": "DENY",
            "x-content-type-options": "nosniff",
            "referrer-policy": "same-origin",
            "cross-origin-opener-policy": "same-origin",
        }
        missing = {name for name, value in expected.items() if headers.get(name) != value}
        if missing or "default-src 'none'" not in policy or "'unsafe-" in policy:
            wrong[page] = (missing, policy)
        if "no-store" not in headers.get("cache-control", "") and "jsi18n" not in page:
            wrong[page] = headers.get("cache-control")

    assert len(PAGES) > 15
    assert wrong == {}


@pytest.mark.django_db
def test_without_a_session_a_page_is_neither_shown_nor_kept():
    for page in PAGES:
        answer = Client().get(page)
        if answer.status_code == 200:
            assert page in {"/admin/login/", "/admin/jsi18n/"}
            assert answer["x-frame-options"] == "DENY"


FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "  +1", "\n=1", '=HYPERLINK("http://x")', "=cmd|' /C calc'!A0")  # fmt: skip


@given(
    st.sampled_from(FORMULAS) | st.text(max_size=30),
    st.text("= +-@\t\r\n\x00\ufeff'\",;", max_size=12),
)
def test_no_text_becomes_a_formula_in_either_writer(text, prefix):
    for raw in (text, prefix + text):
        for written in (export._safe(raw), cell(raw)):
            if re.fullmatch(r"-[0-9]+(\.[0-9]+)?", str(written)):
                continue  # a number that is one cannot run
            assert (
                not str(written)
                .lstrip(" \n\ufeff\x00")
                .startswith(("=", "+", "-", "@", "\t", "\r"))
            ), written


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_stays_a_number(number):
    assert export._safe(number) == number
    assert str(cell(number)).lstrip("'") == str(cell(number))


@pytest.mark.django_db
def test_a_key_named_like_a_formula_is_text_in_every_export():
    root = Client()
    root.force_login(cast.superuser())
    key, _ = cast.key("ci")
    ApiKey.objects.filter(pk=key.pk).update(name='=HYPERLINK("http://evil")')
    cast.record(
        opening={"key_name": '=HYPERLINK("http://evil")', "user": "@SUM(1)", "user_agent": "-2+3"}
    )

    lists = root.get("/api/v1/requests/?from=2026-11-20&to=2026-11-21&format=csv")
    keys = root.get("/api/v1/keys/?format=csv")

    for answer in (lists, keys):
        text = (
            b"".join(answer.streaming_content).decode()
            if answer.streaming
            else answer.content.decode()
        )
        assert answer.status_code == 200
        assert ",=HYPERLINK" not in text
        assert ',"=HYPERLINK' not in text
        assert "text/csv" in answer["content-type"]
        assert "attachment" in answer["content-disposition"]
        assert answer["x-content-type-options"] == "nosniff"
    assert "'=1" in "".join(map(str, csv_lines([{"a": "=1"}])))


@pytest.mark.django_db
@pytest.mark.parametrize(
    "text", ["%" * 1_000, "_" * 50, "%%%%", "\\%", "a" * 10_000, "'%'", "[a-z]*"]
)
def test_a_search_is_for_what_was_typed_and_scans_no_words(django_assert_max_num_queries, text):
    cast.record()
    root = Client()
    root.force_login(cast.superuser())

    with django_assert_max_num_queries(40) as asked:
        answer = root.get("/admin/proxy/exchange/", {"q": text})

    assert answer.status_code == 200
    assert "req_" not in answer.content.decode().partition("<tbody")[2].partition("</tbody")[0]
    sql = " ".join(query["sql"] for query in asked.captured_queries)
    assert "proxy_transcript" not in sql.replace("proxy_exchange", "")
    assert "LIKE '%" not in sql


WAYS = ({"stream": True}, {"stream": False}, {})


def test_each_way_in_asks_the_same_door(gateway, scripted, reload):
    """A limit of one request: whichever way takes it, the others find it taken."""
    scripted.on("chat-doors", scripts.chat())
    team = ApiKey.objects.get(name="ada").team
    answers = {}
    for n, (first, then) in enumerate(itertools.product(WAYS, WAYS)):
        _, secret = ApiKey.issue(team, f"one-a-minute-{n}", scopes=["messages"], limits={"rpm": 1})
        reload()
        told = [
            gateway.post(message("chat-doors", **ask), x_api_key=secret).status
            for ask in (first, then)
        ]
        answers[json.dumps([first, then])] = told

    assert set(map(tuple, answers.values())) == {(200, 429)}


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/v1/models/chat-x"]
)
def test_each_way_in_refuses_the_same_keys(gateway, reload, path):
    team = ApiKey.objects.get(name="ada").team
    name = path.strip("/").replace("/", "-")
    _, reports = ApiKey.issue(team, f"reports-{name}", scopes=["reports"])
    _, elsewhere = ApiKey.issue(team, f"elsewhere-{name}", ip_allow=["203.0.113.0/24"])
    _, other = ApiKey.issue(team, f"other-{name}", models_allowed=["nothing-*"])
    reload()
    method = "POST" if "messages" in path else "GET"
    body = json.dumps(message("chat-x")).encode() if method == "POST" else None

    told = {
        secret: gateway.ask(
            method, path, body, {"x-api-key": secret, "content-type": "application/json"}
        )
        for secret in (reports, elsewhere, other, "sk-br-unknown")
    }

    statuses = [reply.status for reply in told.values()]
    assert statuses[0] == statuses[1] == 403
    assert statuses[3] == 401
    assert statuses[2] in {403, 404} or b"chat-x" not in told[other].body
