"""Who may ask what: every report route, for every kind of caller, in one table (T09, T10)."""

from datetime import timedelta

import pytest
from django.urls import get_resolver
from django.utils.timezone import now

from proxy.reports.catalogue import VIEWS
from proxy.reports.organizations.urls import VIEWS as WIRE_VIEWS
from tests.fakes.served_client import ServedClient
from tests.proxy.admin import cast
from tests.urls import routes

pytestmark = pytest.mark.django_db

DAY = "?from=2026-11-20&to=2026-11-21"
WIRE_DAY = "?starting_at=2026-11-20T00:00:00Z&ending_at=2026-11-21T00:00:00Z"
CALLERS = ("nobody", "messages", "reports", "admin", "plain_staff", "lead", "root")

REPORT = (401, 403, 200, 200, 403, 200, 200)
OWN = (401, 200, 200, 200, 200, 200, 200)
OF_PLATFORM = (401, 404, 200, 200, 404, 200, 200)
WORDS = (401, 403, 403, 200, 403, 200, 200)
OF_NOBODY_HERE = (401, 404, 404, 404, 404, 404, 404)
SETUP = (401, 403, 403, 200, 403, 403, 200)
NOWHERE = (404,) * 7

TABLE = {
    "usage": (DAY, REPORT),
    "summary": (DAY, REPORT),
    "timeseries": (DAY, REPORT),
    "top": (DAY, REPORT),
    "latency": (DAY, REPORT),
    "errors": (DAY, REPORT),
    "cache": (DAY, REPORT),
    "requests": (DAY, OWN),
    "requests/<str:request_id>": ("", OF_PLATFORM),
    "requests/<str:request_id>/transcript": ("", WORDS),
    "sessions": (DAY, OWN),
    "sessions/<path:session_id>": ("", OF_PLATFORM),
    "budgets": ("", REPORT),
    "budgets/<str:budget_id>/status": ("", REPORT),
    "me": ("", OWN),
    # 409: whoever may ask hears that no gateway serves in this process
    "me/rehearsal": ("?model=claude-opus-5-5", (401, 409, 409, 409, 400, 400, 400)),
    "keys/<int:key_id>/rehearsal": ("?model=m", (401, 403, 403, 409, 403, 403, 409)),
    "exports": ("", OWN),
    "exports/<str:export_id>": ("", OF_NOBODY_HERE),
    "exports/<str:export_id>/download": ("", OF_NOBODY_HERE),
    "requests/<str:request_id>/raw/<str:side>": ("", WORDS),
    **dict.fromkeys(("keys", "teams", "users", "models", "upstreams", "prices"), ("", SETUP)),
    "keys/<int:key_id>": ("", SETUP),
    "teams/<str:team>": ("", SETUP),
    "users/<str:user>": ("", SETUP),
    "models/<int:route_id>": ("", SETUP),
    "upstreams/<str:upstream>": ("", SETUP),
    "prices/<int:price_id>": ("", SETUP),
}
WIRE_TABLE = {
    "me": ("", REPORT),
    "usage_report/messages": (WIRE_DAY, REPORT),
    "usage_report/claude_code": ("?starting_at=2026-11-20", REPORT),
    "cost_report": (WIRE_DAY, REPORT),
    "analytics/usage": (WIRE_DAY, REPORT),
    "analytics/cost": (WIRE_DAY, REPORT),
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
    paths = routes(get_resolver("proxy.urls").url_patterns)
    ours = {one for one in paths if one.startswith(("api/v1/", "v1/organizations/"))}

    known = {f"api/v1/{route}{end}" for route in TABLE for end in ("", "/")}
    known |= {f"v1/organizations/{route}" for route in WIRE_TABLE}
    known |= {"api/v1/schema/", "api/v1/docs/"}  # open: they say nothing about anybody
    known |= {rf"{prefix}\A(?P<rest>(?s:.*))\Z" for prefix in ("api/v1/", "v1/organizations/")}
    assert ours == known
    assert set(TABLE) == set(VIEWS)
    assert set(WIRE_TABLE) == set(WIRE_VIEWS)


@pytest.fixture
def house(client):
    """Platform made one request in one session; research looks on with a messages key."""
    from proxy.models import Budget, Route, Upstream

    ci, _ = cast.key("ci", user=cast.staff("ben"))
    exchange = cast.record(key=ci, opening={"session_id": "s1"}, at=cast.NOON)
    budget = Budget.objects.create(team=ci.team, usd=10)
    secrets = {
        "messages": cast.key("cleo", of="research")[1],
        "reports": cast.key("board", scopes=["reports"])[1],
        "admin": cast.key("finance", of="research", scopes=["admin"])[1],
    }
    users = {"plain_staff": cast.staff("olga"), "lead": cast.ada(), "root": cast.superuser()}
    names = {
        "request_id": exchange.pk,
        "session_id": "s1",
        "side": "request",
        "budget_id": str(budget.pk),
        "export_id": "export_of_somebody",
        "key_id": str(ci.pk),
        "team": "platform",
        "user": "ben",
        "route_id": str(Route.objects.create(model="claude-*").pk),
        "upstream": "vllm",
        "price_id": str(cast.price().pk),
    }
    Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")

    def ask(caller, url, method="get"):
        client.logout()
        headers = {"x-api-key": secrets[caller]} if caller in secrets else {}
        if caller in users:
            client.force_login(users[caller])
        return getattr(client, method)(url, headers=headers)

    return ask, names, ci


def filled(route, names):
    for name, value in names.items():
        for kind in ("str", "int", "path"):
            route = route.replace(f"<{kind}:{name}>", value)
    return route


@pytest.mark.parametrize("route", TABLE)
def test_our_reports_answer_whom_the_table_says(house, route):
    ask, names, _ = house
    query, expected = TABLE[route]
    url = f"/api/v1/{filled(route, names)}/{query}"

    found = tuple(ask(caller, url).status_code for caller in CALLERS)

    assert found == expected


@pytest.mark.parametrize("route", WIRE_TABLE)
def test_the_compatible_routes_answer_whom_the_table_says(house, route):
    ask, _, ci = house
    query, expected = WIRE_TABLE[route]
    ident = {"api": f"apikey_{ci.pk}", "use": "user_ben", "wor": "wrkspc_platform"}.get(
        route[:3], ""
    )
    url = f"/v1/organizations/{filled(route, {'ident': ident})}{query}"

    found = tuple(ask(caller, url).status_code for caller in CALLERS)

    assert found == expected


@pytest.mark.parametrize("route", ["usage", "requests", "me"])
@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_nothing_can_be_written(house, route, method):
    ask, _, _ = house

    answer = ask("admin", f"/api/v1/{route}/", method)

    assert answer.status_code == 405
    assert answer.json()["type"] == "error"


@pytest.mark.parametrize("url", ["/api/v1/nothing", "/v1/organizations/nothing/here", "/api/v1/"])
def test_unknown_paths_answer_in_the_one_error_shape(client, url):
    answer = client.get(url)

    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"
    assert answer.json()["request_id"] == answer["request-id"]


def test_the_schema_and_its_page_are_open(client):
    assert client.get("/api/v1/schema/").status_code == 200
    page = client.get("/api/v1/docs/")
    assert page.status_code == 200
    assert "default-src 'none'" in page["Content-Security-Policy"]
    assert "<script" not in page.content.decode()


def test_another_teams_rows_change_no_figure(client):
    """Mallory of research asks in every way; platform's traffic must be invisible."""
    mallory, secret = cast.key("mallory", of="research", scopes=["reports"])
    cast.record(key=mallory, team="research", opening={"session_id": "hers"})
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
        f"/v1/organizations/usage_report/messages{WIRE_DAY}&group_by[]=workspace_id",
        f"/v1/organizations/usage_report/messages{WIRE_DAY}&group_by[]=session",
        f"/v1/organizations/cost_report{WIRE_DAY}&group_by[]=description",
        f"/v1/organizations/analytics/usage{WIRE_DAY}&group_by[]=actor",
        "/v1/organizations/usage_report/claude_code?starting_at=2026-11-20",
        "/v1/organizations/workspaces",
        "/v1/organizations/users",
        "/v1/organizations/api_keys",
    ]

    def bodies():
        answers = [client.get(url, headers={"x-api-key": secret}) for url in urls]
        return [answer.content for answer in answers]

    before = bodies()
    ben, _ = cast.key("ben", user=cast.staff("ben"))
    one = cast.record(key=ben, opening={"user": "ben", "session_id": "his"})

    assert bodies() == before
    for url in (f"requests/{one.pk}/", f"requests/{one.pk}/transcript/", "sessions/his/"):
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
def test_both_headers_are_read(client, headers, status):
    _, secret = cast.key("finance", scopes=["admin"])
    sent = {name: value.replace("KEY", secret) for name, value in headers.items()}

    answer = client.get("/api/v1/me/", headers=sent)

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
def test_a_key_that_ended_opens_nothing(client, fields, status):
    _, secret = cast.key("finance", scopes=["admin"], **fields)

    assert client.get("/api/v1/me/", headers={"x-api-key": secret}).status_code == status


def test_a_session_needs_the_csrf_token():
    client = ServedClient(enforce_csrf_checks=True)
    client.force_login(cast.superuser())
    body = {"name": "new"}

    bare = client.post("/api/v1/teams/", body, content_type="application/json")
    client.cookies["csrftoken"] = token = "a" * 32
    told = client.post(
        "/api/v1/teams/", body, content_type="application/json", headers={"X-CSRFToken": token}
    )

    assert (bare.status_code, told.status_code) == (403, 201)
    assert "CSRF" in bare.json()["error"]["message"]
