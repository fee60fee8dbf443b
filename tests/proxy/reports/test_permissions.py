"""Permissions of the reports: the status of each path for each kind of caller (T09, T10)."""

from datetime import timedelta

import pytest
from django.urls import get_resolver
from django.utils.timezone import now

from proxy.ledger.webhooks import record_test_event
from proxy.reports.organizations.urls import VIEWS as ADMIN_API_VIEWS
from proxy.reports.urls import VIEWS, VIEWSETS
from tests.fakes.servers.served_client import ServedClient
from tests.lanes import repeat
from tests.proxy.admin import factories
from tests.urls import url_routes

pytestmark = pytest.mark.django_db

DAY = "?from=2026-11-20&to=2026-11-21"
ADMIN_API_DAY = "?starting_at=2026-11-20T00:00:00Z&ending_at=2026-11-21T00:00:00Z"
CALLERS = ("anonymous", "messages", "reports", "admin", "plain_staff", "lead", "root")
SENDERS = repeat(fast=("anonymous", "messages", "lead"), slow=CALLERS)
"""In the fast lane the callers that the access matrix has not, and two with few permissions."""

REPORT = (401, 403, 200, 200, 403, 200, 200)
OWN = (401, 200, 200, 200, 200, 200, 200)
OF_PLATFORM = (401, 404, 200, 200, 404, 200, 200)
TRANSCRIPT = (401, 403, 403, 200, 403, 200, 200)
OTHERS_EXPORT = (401, 404, 404, 404, 404, 404, 404)
AUDIT = (401, 403, 200, 200, 403, 403, 200)
SETUP = (401, 403, 403, 200, 403, 403, 200)
WEBHOOK = (401, 403, 403, 200, 403, 403, 200)
NOT_BY_GET = (401, 403, 403, 405, 403, 403, 405)
NOT_FOUND = (404,) * 7

TABLE = {
    "usage": (DAY, REPORT),
    "summary": (DAY, REPORT),
    "timeseries": (DAY, REPORT),
    "top": (DAY, REPORT),
    "latency": (DAY, REPORT),
    "errors": (DAY, REPORT),
    "cache": (DAY, REPORT),
    "comparison": (DAY, REPORT),
    "requests": (DAY, OWN),
    "requests/<str:request_id>": ("", OF_PLATFORM),
    "requests/<str:request_id>/transcript": ("", TRANSCRIPT),
    "outcomes": (DAY, OWN),
    "stop_reasons": (DAY, OWN),
    "search": ("?q=hello", TRANSCRIPT),
    "sessions": (DAY, OWN),
    "sessions/<path:session_id>": ("", OF_PLATFORM),
    "audit": ("", AUDIT),
    "budgets": ("", REPORT),
    "budgets/<str:budget_id>": ("", REPORT),
    "budgets/<str:budget_id>/status": ("", REPORT),
    "me": ("", OWN),
    "me/keys": ("", (401, 403, 403, 403, 200, 200, 200)),
    "me/keys/<str:key_id>": ("", (401, 403, 403, 403, 404, 404, 404)),
    "me/keys/<str:key_id>/rotate": ("", (401, 403, 403, 403, 405, 405, 405)),
    # 409 for permitted callers: no gateway runs in this process
    "me/dry-run": ("?model=claude-opus-5-5", (401, 409, 409, 409, 400, 400, 400)),
    "me/rehearsal": ("?model=claude-opus-5-5", (401, 409, 409, 409, 400, 400, 400)),
    "keys/<str:key_id>/dry-run": ("?model=m", (401, 403, 403, 409, 403, 403, 409)),
    "keys/<str:key_id>/rehearsal": ("?model=m", (401, 403, 403, 409, 403, 403, 409)),
    "exports": ("", OWN),
    "exports/<str:export_id>": ("", OTHERS_EXPORT),
    "exports/<str:export_id>/download": ("", OTHERS_EXPORT),
    "requests/<str:request_id>/raw/<str:side>": ("", TRANSCRIPT),
    **dict.fromkeys(("keys", "teams", "users", "models", "upstreams", "prices"), ("", SETUP)),
    "keys/<str:key_id>": ("", SETUP),
    "teams/<str:team>": ("", SETUP),
    "users/<str:user>": ("", SETUP),
    "models/<int:route_id>": ("", SETUP),
    "upstreams/<str:upstream>": ("", SETUP),
    "prices/<int:price_id>": ("", SETUP),
    "pauses": ("", SETUP),
    "pauses/<int:pause_id>": ("", SETUP),
    "webhooks": ("", WEBHOOK),
    "webhooks/<int:webhook_id>": ("", WEBHOOK),
    "webhooks/<int:webhook_id>/rotate": ("", NOT_BY_GET),
    "deliveries": ("", WEBHOOK),
    "deliveries/<int:delivery_id>": ("", WEBHOOK),
    "deliveries/<int:delivery_id>/redeliver": ("", NOT_BY_GET),
    "reports": ("", AUDIT),
    "reports/<str:report>": ("", AUDIT),
    "reports/<str:report>/run": (DAY, AUDIT),
    "stop": ("", (401, 403, 403, 405, 403, 403, 405)),
}
ADMIN_API_TABLE = {
    "me": ("", REPORT),
    "usage_report/messages": (ADMIN_API_DAY, REPORT),
    "usage_report/claude_code": ("?starting_at=2026-11-20", REPORT),
    "cost_report": (ADMIN_API_DAY, REPORT),
    "analytics/usage": (ADMIN_API_DAY, REPORT),
    "analytics/cost": (ADMIN_API_DAY, REPORT),
    "api_keys": ("", REPORT),
    "api_keys/<str:ident>": ("", REPORT),
    "users": ("", REPORT),
    "users/<str:ident>": ("", REPORT),
    "workspaces": ("", REPORT),
    "workspaces/<str:ident>": ("", REPORT),
    "workspaces/<str:ident>/members": ("", REPORT),
    "spend_limits": ("", REPORT),
    "spend_limits/effective": ("", REPORT),
}


def test_every_route_of_ours_is_in_the_table():
    paths = url_routes(get_resolver("proxy.urls").url_patterns)
    paths_of_reports = {
        exchange for exchange in paths if exchange.startswith(("api/v1/", "v1/organizations/"))
    }

    known = {f"api/v1/{route}{end}" for route in TABLE for end in ("", "/")}
    known |= {f"v1/organizations/{route}" for route in ADMIN_API_TABLE}
    known |= {"api/v1/"}
    known |= {"api/v1/schema/", "api/v1/docs/"}  # public: no data of the installation
    known |= {rf"{prefix}\A(?P<rest>(?s:.*))\Z" for prefix in ("api/v1/", "v1/organizations/")}
    assert paths_of_reports == known
    tables = {one.resource for one in VIEWSETS}
    for one in VIEWSETS:
        kind = getattr(one, "lookup_value_converter", "str")
        row = f"{one.resource}/<{kind}:{one.lookup_url_kwarg}>"
        tables |= {row, *(f"{row}/{action.url_path}" for action in one.get_extra_actions())}
    assert set(TABLE) == set(VIEWS) | tables
    assert set(ADMIN_API_TABLE) == set(ADMIN_API_VIEWS)


@pytest.fixture
def callers(client):
    """One request of the team platform, and callers of the teams platform and research."""
    from proxy.models import Budget, Pause, Route, SavedReport, Upstream, Webhook

    ci, _ = factories.key("ci", user=factories.staff("ben"))
    exchange = factories.record(key=ci, opening={"session_id": "s1"}, at=factories.NOON)
    budget = Budget.objects.create(team=ci.team, usd=10)
    webhook = Webhook.objects.create(name="ops", url="https://ops.example.com/hook", team=ci.team)
    secrets = {
        "messages": factories.key("cleo", of="research")[1],
        "reports": factories.key("research-bot", scopes=["reports"])[1],
        "admin": factories.key("finance", of="research", scopes=["admin"])[1],
    }
    users = {
        "plain_staff": factories.staff("olga"),
        "lead": factories.ada(),
        "root": factories.superuser(),
    }
    names = {
        "request_id": exchange.pk,
        "session_id": "s1",
        "side": "request",
        "budget_id": f"budget_{budget.pk}",
        "export_id": "export_of_another_caller",
        "key_id": f"apikey_{ci.pk}",
        "team": "platform",
        "user": "ben",
        "route_id": str(Route.objects.create(model="claude-*").pk),
        "upstream": "vllm",
        "price_id": str(factories.price().pk),
        "webhook_id": str(webhook.pk),
        "delivery_id": str(record_test_event(webhook).pk),
        "report": SavedReport.objects.create(name="daily", report="usage", team=ci.team).name,
        "pause_id": str(Pause.objects.create(model="claude-*", message="Soon.").pk),
    }
    Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")

    def send_as(caller, url, method="get"):
        client.logout()
        headers = {"x-api-key": secrets[caller]} if caller in secrets else {}
        if caller in users:
            client.force_login(users[caller])
        return getattr(client, method)(url, headers=headers)

    return send_as, names, ci


def fill_path(route, names):
    for name, value in names.items():
        for kind in ("str", "int", "path"):
            route = route.replace(f"<{kind}:{name}>", value)
    return route


def statuses(send_as, url):
    return {caller: send_as(caller, url).status_code for caller in SENDERS}


def expected_of(row):
    of_caller = dict(zip(CALLERS, row, strict=True))
    return {caller: of_caller[caller] for caller in SENDERS}


@pytest.mark.repeated
def test_each_report_answers_each_caller_as_in_the_table(callers):
    send_as, names, _ = callers

    found = {}
    for route, (query, _) in TABLE.items():
        url = f"/api/v1/{fill_path(route, names)}/{query}"
        found[route] = statuses(send_as, url)

    assert found == {route: expected_of(words) for route, (_, words) in TABLE.items()}


@pytest.mark.repeated
def test_each_admin_api_path_answers_each_caller_as_in_the_table(callers):
    send_as, _, ci = callers
    idents = {"api": f"apikey_{ci.pk}", "use": "user_ben", "wor": "wrkspc_platform"}

    found = {}
    for route, (query, _) in ADMIN_API_TABLE.items():
        ident = idents.get(route[:3], "")
        url = f"/v1/organizations/{fill_path(route, {'ident': ident})}{query}"
        found[route] = statuses(send_as, url)

    assert found == {route: expected_of(words) for route, (_, words) in ADMIN_API_TABLE.items()}


def test_reports_refuse_writing_methods(callers):
    send_as, _, _ = callers

    for route in ("usage", "requests", "me"):
        for method in ("post", "put", "patch", "delete"):
            answer = send_as("admin", f"/api/v1/{route}/", method)
            assert (route, method, answer.status_code) == (route, method, 405)
            assert answer.json()["type"] == "error"


@pytest.mark.parametrize("url", ["/api/v1/nothing", "/v1/organizations/nothing/here"])
def test_unknown_paths_return_anthropics_error_body(client, url):
    answer = client.get(url)

    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"
    assert answer.json()["request_id"] == answer["request-id"]


def test_the_schema_and_its_page_are_open(client):
    assert client.get("/api/v1/schema/").status_code == 200
    page = client.get("/api/v1/docs/")
    assert page.status_code == 200
    assert "default-src 'none'" in page["Content-Security-Policy"]


def test_rows_of_another_team_change_no_figure(client):
    """A key of research reads every report; requests of platform must not change any."""
    mallory, secret = factories.key("mallory", of="research", scopes=["reports"])
    factories.record(key=mallory, team="research", opening={"session_id": "hers"})
    urls = [
        f"/api/v1/usage/{DAY}&group_by=team,key,user,model",
        f"/api/v1/usage/{DAY}&group_by=team&team=platform",
        f"/api/v1/usage/{DAY}&group_by=team&format=csv",
        f"/api/v1/timeseries/{DAY}&by=team&metric=cost,requests",
        f"/api/v1/top/{DAY}&by=user&metric=requests",
        f"/api/v1/latency/{DAY}&by=key",
        f"/api/v1/errors/{DAY}",
        f"/api/v1/cache/{DAY}",
        f"/api/v1/requests/{DAY}",
        f"/api/v1/requests/{DAY}&team=platform",
        f"/api/v1/sessions/{DAY}",
        f"/v1/organizations/usage_report/messages{ADMIN_API_DAY}&group_by[]=workspace_id",
        f"/v1/organizations/usage_report/messages{ADMIN_API_DAY}&group_by[]=session",
        f"/v1/organizations/cost_report{ADMIN_API_DAY}&group_by[]=description",
        f"/v1/organizations/analytics/usage{ADMIN_API_DAY}&group_by[]=actor",
        "/v1/organizations/usage_report/claude_code?starting_at=2026-11-20",
        "/v1/organizations/workspaces",
        "/v1/organizations/users",
        "/v1/organizations/api_keys",
    ]

    def bodies():
        answers = [client.get(url, headers={"x-api-key": secret}) for url in urls]
        return [answer.content for answer in answers]

    before = bodies()
    ben, _ = factories.key("ben", user=factories.staff("ben"))
    exchange = factories.record(key=ben, opening={"user": "ben", "session_id": "his"})

    assert bodies() == before
    for url in (f"requests/{exchange.pk}/", f"requests/{exchange.pk}/transcript/", "sessions/his/"):
        answer = client.get(f"/api/v1/{url}", headers={"x-api-key": secret})
        assert answer.status_code in {403, 404}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"x-api-key": "sk-br-wrong"}, 401),
        ({"x-api-key": "é" * 40}, 401),
        ({"x-api-key": "x" * 5000}, 401),
        ({"authorization": "Basic abc"}, 401),
        ({"authorization": "Bearer KEY"}, 200),
        ({"x-api-key": "KEY"}, 200),
        ({"x-api-key": "KEY", "authorization": "Bearer KEY"}, 200),
        ({"x-api-key": "KEY", "authorization": "Bearer other"}, 400),
    ],
)
def test_a_key_in_either_header_is_accepted(client, headers, status):
    _, secret = factories.key("finance", scopes=["admin"])
    headers_sent = {name: value.replace("KEY", secret) for name, value in headers.items()}

    answer = client.get("/api/v1/me/", headers=headers_sent)

    assert answer.status_code == status
    if status != 200:
        assert set(answer.json()) == {"type", "error", "request_id"}
    assert secret not in answer.content.decode()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"revoked": now()}, 401),
        ({"expires": now() - timedelta(seconds=1)}, 401),
        ({"expires": now() + timedelta(days=1)}, 200),
        ({"ip_allow": ["10.0.0.0/8"]}, 403),
        ({"ip_allow": ["127.0.0.0/8"]}, 200),
    ],
)
def test_an_expired_or_revoked_key_is_refused(client, fields, status):
    _, secret = factories.key("finance", scopes=["admin"], **fields)

    assert client.get("/api/v1/me/", headers={"x-api-key": secret}).status_code == status


def test_a_session_needs_the_csrf_token():
    client = ServedClient(enforce_csrf_checks=True)
    client.force_login(factories.superuser())
    body = {"name": "new"}

    bare = client.post("/api/v1/teams/", body, content_type="application/json")
    client.cookies["csrftoken"] = token = "a" * 32
    with_token = client.post(
        "/api/v1/teams/", body, content_type="application/json", headers={"X-CSRFToken": token}
    )

    assert (bare.status_code, with_token.status_code) == (403, 201)
    assert "CSRF" in bare.json()["error"]["message"]
