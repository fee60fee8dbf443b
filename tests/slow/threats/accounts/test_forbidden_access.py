"""Rejected access: foreign hosts, protected paths, other origins, CSV formulas, searches, limits."""

import itertools
import json
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import URLResolver, get_resolver
from hypothesis import given
from hypothesis import strategies as st

from proxy.models import ApiKey
from proxy.reports.core.rendering import csv_cell, csv_lines
from tests.proxy.admin import factories
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message

HOSTS = (
    "evil.example", "localhost.evil.example", "evil.example#localhost", "evil.example?localhost", "evil.example/localhost",
    "localhost@evil.example", "evil.example\\localhost", "localhost:99999999", "localhost:x", "local host", "localhost, evil.example",
    "localhost/admin/", "localhost\t", "[::1", "[::1]evil", "*", "..", ".localhost", "127.0.0.1.evil.example", "0x7f.1", "",
)  # fmt: skip
HOSTS_WITH_PATHS = ("localhost", "localhost:80/healthz?", "x/healthz#")
EQUIVALENT = {"", "localhost\t", "localhost:99999999"}  # they name the gateway's own host
PATHS = ("/admin/", "/admin/proxy/exchange/", "/api/v1/summary/", "/v1/organizations/me")
UNUSUAL_PATHS = (
    "//admin/", "/admin//", "/%61dmin/", "/admin/%2e%2e/admin/", "/healthz/../admin/", "/healthz%2f..%2fadmin/", "/admin;x/",
    "/admin/./", "/v1/models/../../admin/", "/v1/models/%2e%2e%2f%2e%2e%2fadmin/", "/metrics/../api/v1/requests/", "/ADMIN/",
    "/api/v1/../../admin/", "/v1/organizations/../messages", "/readyz;/admin/", "/admin/.", "/admin%00/", "/.//admin/",
)  # fmt: skip


def in_turn(many: tuple[str, ...], few: tuple[str, ...]) -> list[Any]:
    """Return all pairs; the fast lane has each of ``many`` with one of ``few``."""
    return [
        pytest.param(one, other, marks=() if n % len(few) == m else pytest.mark.slow)
        for n, one in enumerate(many)
        for m, other in enumerate(few)
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(("host", "path"), in_turn(HOSTS, PATHS))
def test_foreign_host_is_rejected_and_never_used(host, path):
    client = Client()
    client.force_login(factories.superuser())

    answer = client.get(path, headers={"host": host})

    if answer.status_code == 200:
        assert host in EQUIVALENT
    else:
        assert answer.status_code in {302, 400, 401}
        assert "evil.example" not in answer.headers.get("location", "")


@pytest.mark.django_db
@pytest.mark.parametrize(("path", "host"), in_turn(UNUSUAL_PATHS, HOSTS_WITH_PATHS))
def test_unusual_path_opens_no_protected_page(path, host):
    answer = Client().get(path, headers={"host": host})

    assert answer.status_code in {301, 302, 400, 401, 404}
    assert "evil" not in answer.headers.get("location", "")
    if answer.status_code in {301, 302}:
        assert answer.headers["location"].startswith("/admin/")
        assert not answer.headers["location"].startswith("//")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "target",
    [
        "//evil.example/",
        "https://evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
        "\x09//evil.example",
    ],
)
def test_sign_in_redirects_only_within_the_admin(target):
    olga = factories.staff("olga")
    olga.set_password("a long enough password")
    olga.save()

    answer = Client().post(
        "/admin/login/", {"username": "olga", "password": "a long enough password", "next": target}
    )

    assert answer.status_code == 302
    assert answer["location"].startswith("/admin/")


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/models", "/healthz", "/api/v1/me/", "/admin/"]
)
@pytest.mark.parametrize("method", ["OPTIONS", "POST", "GET"])
def test_pages_of_other_origins_get_no_session_and_no_private_network(gateway, path, method):
    """Only the paths of Anthropic's API answer other origins, which must have a key of their own."""
    headers_to_send = {
        "origin": "https://evil.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "x-api-key",
        "access-control-request-private-network": "true",
    }

    reply = gateway.request(
        method,
        path,
        b"{}" if method == "POST" else None,
        headers_to_send | {"x-api-key": gateway.key},
    )

    allowed = {
        name: reply.headers[name] for name in reply.headers if name.startswith("access-control-")
    }
    assert "access-control-allow-credentials" not in allowed
    assert "access-control-allow-private-network" not in allowed
    assert allowed.get("access-control-allow-origin") == ("*" if path.startswith("/v1/") else None)


@pytest.mark.django_db
def test_reports_reject_other_origins_and_posts_without_csrf_token():
    client = Client(enforce_csrf_checks=True)
    client.force_login(factories.superuser())

    answer = client.get("/api/v1/me/", headers={"origin": "https://evil.example"})
    forged_post = client.post("/admin/auth/user/add/", {"username": "eve"})

    assert not answer.has_header("access-control-allow-origin")
    assert forged_post.status_code == 403


def plain_pages(patterns, above=""):
    for pattern in patterns:
        route = above + str(pattern.pattern).lstrip("^")
        if isinstance(pattern, URLResolver):
            yield from plain_pages(pattern.url_patterns, route)
        elif "<" not in route and "(" not in route and route.startswith("admin/"):
            yield "/" + route


PAGES = sorted(set(plain_pages(get_resolver("bridge_project.urls").url_patterns)))


@pytest.mark.django_db
def test_admin_pages_have_security_headers():
    client = Client()
    client.force_login(factories.superuser())
    wrong = {}
    for page in PAGES:
        answer = client.get(page)
        if answer.status_code != 200:
            continue
        headers = {name.lower(): value for name, value in answer.headers.items()}
        policy = headers.get("content-security-policy", "")
        expected = {
            # the viewer of a PDF is a sandboxed frame in the page of the transcript
            "x-frame-options": "SAMEORIGIN" if page == "/admin/pdf-viewer/" else "DENY",
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
def test_admin_pages_require_a_session():
    for page in PAGES:
        answer = Client().get(page)
        if answer.status_code == 200:
            assert page in {"/admin/login/", "/admin/jsi18n/"}
            assert answer["x-frame-options"] == "DENY"
        else:
            assert answer.status_code == 302, page
            target = "/admin/" if page == "/admin/logout/" else "/admin/login/"
            assert answer["location"].partition("?")[0] == target, page


FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "  +1", "\n=1", '=HYPERLINK("http://x")', "=cmd|' /C calc'!A0")  # fmt: skip


@given(
    st.sampled_from(FORMULAS) | st.text(max_size=30),
    st.text("= +-@\t\r\n\x00\ufeff'\",;", max_size=12),
)
def test_csv_writers_escape_formulas(text, prefix):
    for raw in (text, prefix + text):
        written = str(csv_cell(raw))
        if re.fullmatch(r"-[0-9]+(\.[0-9]+)?", written):
            continue  # a real number is not a formula
        starts = ("=", "+", "-", "@", "\t", "\r")
        assert not written.lstrip(" \n\ufeff\x00").startswith(starts), written


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_csv_writers_do_not_change_numbers(number):
    assert str(csv_cell(number)).lstrip("'") == str(csv_cell(number))


@pytest.mark.django_db
def test_formula_in_a_key_name_is_text_in_every_export():
    root = Client()
    root.force_login(factories.superuser())
    key, _ = factories.key("ci")
    ApiKey.objects.filter(pk=key.pk).update(name='=HYPERLINK("http://evil")')
    factories.record(
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
    assert "'=1" in "".join(map(str, csv_lines([{"a": "=1"}], ["a"])))


@pytest.mark.django_db
@pytest.mark.parametrize(
    "text", ["%" * 1_000, "_" * 50, "%%%%", "\\%", "a" * 10_000, "'%'", "[a-z]*"]
)
def test_search_matches_exactly_and_scans_no_transcripts(django_assert_max_num_queries, text):
    factories.record()
    root = Client()
    root.force_login(factories.superuser())

    with django_assert_max_num_queries(40) as queries:
        answer = root.get("/admin/proxy/exchange/", {"q": text})

    assert answer.status_code == 200
    assert "req_" not in answer.content.decode().partition("<tbody")[2].partition("</tbody")[0]
    sql = " ".join(query["sql"] for query in queries.captured_queries)
    assert "proxy_transcript" not in sql.replace("proxy_exchange", "")
    assert "LIKE '%" not in sql


MODES = ({"stream": True}, {"stream": False}, {})


def test_streamed_and_other_requests_share_rate_limits(gateway, scripted, reload):
    """A limit of one request counts streamed and non-streamed requests together."""
    scripted.on("chat-limited", upstream_scripts.chat())
    team = ApiKey.objects.get(name="ada").team
    answers = {}
    for n, (first, second) in enumerate(itertools.product(MODES, MODES)):
        _, secret = ApiKey.issue(team, f"one-a-minute-{n}", scopes=["messages"], limits={"rpm": 1})
        reload()
        statuses = [
            gateway.post(message("chat-limited", **fields), x_api_key=secret).status
            for fields in (first, second)
        ]
        answers[json.dumps([first, second])] = statuses

    assert set(map(tuple, answers.values())) == {(200, 429)}


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/v1/models/chat-x"]
)
def test_each_endpoint_rejects_the_same_keys(gateway, reload, path):
    team = ApiKey.objects.get(name="ada").team
    name = path.strip("/").replace("/", "-")
    _, reports = ApiKey.issue(team, f"reports-{name}", scopes=["reports"])
    _, elsewhere = ApiKey.issue(team, f"elsewhere-{name}", ip_allow=["203.0.113.0/24"])
    _, other = ApiKey.issue(team, f"other-{name}", models_allowed=["nothing-*"])
    reload()
    method = "POST" if "messages" in path else "GET"
    body = json.dumps(message("chat-x")).encode() if method == "POST" else None

    replies = {
        secret: gateway.request(
            method, path, body, {"x-api-key": secret, "content-type": "application/json"}
        )
        for secret in (reports, elsewhere, other, "sk-br-unknown")
    }

    statuses = [reply.status for reply in replies.values()]
    assert statuses[0] == statuses[1] == 403
    assert statuses[3] == 401
    assert statuses[2] in {403, 404} or b"chat-x" not in replies[other].body
