"""Send a request as a role or with a scope, to a server whose database has one row of each model."""

import base64
from dataclasses import dataclass

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db.models import Model

from proxy.ledger.webhooks import record_test_event
from proxy.models import (
    Budget,
    Drift,
    Pause,
    Price,
    Route,
    SavedReport,
    Scope,
    Upstream,
    UpstreamPolicy,
    Webhook,
)
from proxy.permissions.roles import AUDITOR, MEMBER, OWNER
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

KEYS = ("member_key", "other_key", "reports_key", "admin_key")
PEOPLE = ("staff", MEMBER, AUDITOR, OWNER, "root")
ROLES = ("anonymous", *KEYS, *PEOPLE)
SCOPES = tuple(Scope.values)
"""The scopes of keys of the team platform, which has the rows, each with one scope."""


@dataclass(frozen=True)
class Rows:
    """The rows of the database, the parts of URLs that name them, and the callers."""

    objects: dict[str, Model]
    fillings: dict[str, str]
    secrets: dict[str, str]
    users: dict[str, User]
    sessions: dict[str, str]


@pytest.fixture(scope="module")
def one_of_each(module_rows):
    """Create one row of each model, the keys of the roles and scopes, and a session of each user."""
    with module_rows():
        return create_rows()


def create_rows():
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
    secrets = {
        "member_key": own,
        "other_key": factories.key("cleo", of="research")[1],
        "reports_key": factories.key("dashboard", scopes=["reports"])[1],
        "admin_key": factories.key("finance", of="research", scopes=["admin"])[1],
        **{scope: factories.key(scope.replace(":", "-"), scopes=[scope])[1] for scope in SCOPES},
    }
    users = {
        "staff": factories.staff("olga"),
        MEMBER: ben,
        **{role: factories.staff(role, groups=(role,)) for role in (AUDITOR, OWNER)},
        "root": factories.superuser(),
    }
    sessions = {role: session_of(user) for role, user in users.items()}
    return Rows(objects, fillings, secrets, users, sessions)


def session_of(user):
    """Sign in and return the cookie of the session."""
    client = ServedClient()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


@pytest.fixture
def send(one_of_each):
    """Return a function that sends a request as a role; the database has one row of each model."""
    rows = one_of_each
    cache.clear()  # the throttle would count the requests of all tests together
    clients = {role: ServedClient() for role in (*ROLES, *SCOPES)}
    for role, session in rows.sessions.items():
        clients[role].cookies[settings.SESSION_COOKIE_NAME] = session

    def one(role, method, url, query=None, *, side="request", body=b"", **headers):
        url = fill(rows, url, side)
        if query is None:
            part = next((part for part in QUERIES if url.startswith(part)), "")
            query = "" if url == INDEX else QUERIES.get(part, "")
        client = clients[role]
        if role in rows.users and not has_session(client):
            client.force_login(rows.users[role])
        if role in rows.secrets:
            headers = {"x-api-key": rows.secrets[role], **headers}
        return client.generic(
            method,
            f"/{url}{query}",
            body,
            content_type=JSON if body else "application/octet-stream",
            headers=headers,
        )

    return one


def fill(rows, url, side):
    """Return the URL of existing rows."""
    for model, row in rows.objects.items():
        if f"admin/{model}/" in url:
            url = url.replace("<path:object_id>", str(row.pk))
    for pattern, value in {**rows.fillings, "<str:side>": side}.items():
        url = url.replace(pattern, value)
    return url.replace("<path:object_id>", "0")


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


JSON = "application/json"
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
