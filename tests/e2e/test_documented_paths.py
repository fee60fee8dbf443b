"""Every documented path, with its method, on a running server; each answer fits its schema.

The list comes from the OpenAPI schema, the docs, the URL patterns and the router's tables. A
path that is new in any of them, and that no row here covers, fails.
"""

import json
import re
import time
from typing import Any, NamedTuple

import httpx
import pytest
import schemathesis
from anthropic.types import Message, MessageTokensCount, ModelInfo
from django.urls import get_resolver
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from proxy.reports.docs import schema
from proxy.routing import BELOW, EXACT
from tests.fakes.gateway import REPOSITORY, Gateway
from tests.fakes.grammar import faults_of_bytes
from tests.urls import routes

PASSWORD = "correct horse battery staple"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PROMISED = schemathesis.openapi.from_dict(schema())
OPERATIONS = {
    f"{one.method.upper()} {one.path}": one
    for one in (found.ok() for found in PROMISED.get_all_operations())
}
MESSAGE = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Hello"}],
}
TARGET = {"upstream": "idle", "model": "m"}
UPSTREAM = {"dialect": "chat", "base_url": "http://127.0.0.1:9/v1"}
PRICE = {"model": "m", "since": "2026-01-01", "input": "1", "output": "2"}
BODIES: dict[str, dict[str, Any]] = {
    "POST /api/v1/exports/": {"report": "requests", "format": "csv"},
    "POST /api/v1/keys/": {"team": "default", "name": "second"},
    "PATCH /api/v1/keys/{key_id}/": {"expires_at": None},
    "POST /api/v1/teams/": {"name": "second"},
    "PATCH /api/v1/teams/{team}/": {"retention_days": 7},
    "POST /api/v1/users/": {"name": "second"},
    "PATCH /api/v1/users/{user}/": {"is_active": True},
    "POST /api/v1/models/": {"model": "second", "targets": [TARGET]},
    "PATCH /api/v1/models/{route_id}/": {"position": 2},
    "POST /api/v1/upstreams/": {"name": "second", **UPSTREAM},
    "PATCH /api/v1/upstreams/{upstream}/": {"enabled": False},
    "POST /api/v1/prices/": PRICE | {"model": "second"},
}
DOOMED = {"keys", "teams", "users", "models", "upstreams", "prices"}
"""Kinds of which one is made to be deleted."""


class Row(NamedTuple):
    """One request that the OpenAPI schema does not describe, and what its answer must be."""

    kind: str  # the media type
    shape: Any = dict  # of a JSON body: called with it, it raises when the body does not fit
    status: int = 200
    body: dict[str, Any] | None = None
    path: str = ""  # where the documented one has a name in braces
    by: str = "key"


def error(body: dict[str, Any]) -> None:
    assert set(body) == {"type", "error", "request_id"}, body
    assert body["type"] == "error"
    assert all(isinstance(body["error"][part], str) for part in ("type", "message"))


def models(body: dict[str, Any]) -> None:
    assert set(body) == {"data", "has_more", "first_id", "last_id"}
    assert [ModelInfo.model_validate(model) for model in body["data"]]


JSON, HTML, TEXT = "application/json", "text/html", "text/plain"
ROWS = {
    "POST /v1/messages": Row(JSON, Message.model_validate, body=MESSAGE),
    "GET /v1/messages": Row(JSON, error, 405),
    "POST /v1/messages/count_tokens": Row(
        JSON, MessageTokensCount.model_validate,
        body={name: MESSAGE[name] for name in ("model", "messages")},
    ),
    "GET /v1/models": Row(JSON, models),
    "GET /v1/models/{id}": Row(
        JSON, ModelInfo.model_validate, path="/v1/models/claude-sonnet-5-5"
    ),
    "GET /": Row(HTML, by="anonymous"),
    "HEAD /": Row(HTML, by="anonymous"),
    "GET /healthz": Row(JSON, by="anonymous"),
    "GET /api/hello": Row(JSON, by="anonymous"),
    "GET /readyz": Row(JSON, by="anonymous"),
    "GET /metrics": Row(TEXT, by="anonymous"),
    "GET /admin/": Row(HTML, by="root"),
    "GET /static/admin/css/base.css": Row("text/css", by="anonymous"),
    "GET /sign-in/": Row(HTML, status=404, by="anonymous"),  # there is no provider
    "GET /sign-in/callback/": Row(HTML, status=404, by="anonymous"),
    "GET /api/v1/": Row(JSON, error, 404),
    "GET /api/v1/schema/": Row(JSON, by="anonymous"),
    "GET /api/v1/docs/": Row(HTML, by="anonymous"),
}  # fmt: skip
WEBSOCKET = "/ws/live/"
USAGE = "/v1/organizations/usage_report/messages"
MISTAKEN = [
    "/messages", "/messages/count_tokens", "/models", "/chat/completions", "/responses",
    "//v1/messages", "/v1//messages", "/v1/messages/", "/v1/messages/count_tokens/",
    "/v1/v1/messages?beta=true", "/v1/v1/messages/count_tokens", "/v1/v1/models", "/v1", "/v1/",
    "/anthropic/v1/messages", "/anthropic/v1/messages/count_tokens", "/anthropic/v1/models",
    f"/anthropic{USAGE}", "//v1/organizations/me", "/api/messages",
    "/api", "/api/v1", "/v1/organizations", "/v1%2F%2Fmessages", "/nope",
]  # fmt: skip
"""Where clients send requests whose base URL lacks /v1, has it twice, or has more than that."""


class Site:
    """A running gateway on the sandbox, with one of everything that a path can name."""

    def __init__(self, gateway: Gateway) -> None:
        scopes = [word for one in ("messages", "reports", "admin") for word in ("--scope", one)]
        made = gateway.manage("createkey", "--team", "default", "--name", "all", *scopes, "--json")
        self.gateway = gateway
        self.root = signed_in(gateway.url)
        self.headers = {
            "key": {"x-api-key": json.loads(made)["key"]},
            "root": {"x-csrftoken": self.root.cookies["csrftoken"]},
            "anonymous": {},
        }
        self.until(200, "GET", "/v1/models")
        self.names = self._everything()

    def send(self, by: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = self.headers[by] | {name.replace("_", "-"): text for name, text in headers.items()}
        if by == "root":
            return self.root.request(method, path, json=body, headers=sent)
        with httpx.Client(timeout=90) as client:
            return client.request(method, self.gateway.url + path, json=body, headers=sent)

    def until(self, status: int, method: str, path: str) -> Any:
        deadline = time.monotonic() + 90
        while (answer := self.send("key", method, path)).status_code != status:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)
        return answer.json()

    def message(self, session: str) -> str:
        """One answered message of this session, once the ledger has it; its id."""
        answer = self.send("key", "POST", "/v1/messages", MESSAGE, x_claude_code_session_id=session)
        assert answer.status_code == 200, answer.text
        ident: str = answer.headers["request-id"]
        self.until(200, "GET", f"/api/v1/requests/{ident}/")
        return ident

    def make(self, kind: str, **fields: Any) -> dict[str, Any]:
        answer = self.send("root", "POST", f"/api/v1/{kind}/", fields)
        assert answer.status_code in {201, 202}, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def _one_of_each(self, name: str) -> dict[str, Any]:
        upstream = self.make("upstreams", name=name, **UPSTREAM)
        team = self.make("teams", name=name)
        return {
            "upstream": upstream["name"],
            "team": team["name"],
            "user": self.make("users", name=name)["name"],
            "key_id": self.make("keys", team="default", name=name)["id"],
            "price_id": self.make("prices", **PRICE | {"model": name})["id"],
        }

    def _everything(self) -> dict[str, Any]:
        names = self._one_of_each("idle")
        names["route_id"] = self.make("models", model="m", targets=[TARGET])["id"]
        self.doomed = self._one_of_each("doomed")
        self.doomed["route_id"] = self.make("models", model="doomed", targets=[TARGET])["id"]
        report = BODIES["POST /api/v1/exports/"]
        export = self.send("key", "POST", "/api/v1/exports/", report).json()["id"]
        while self.send("key", "GET", f"/api/v1/exports/{export}/").json()["state"] != "done":
            time.sleep(0.1)
        self.gateway.manage("shell", "-v", "0", "-c", BUDGET)
        (budget,) = self.send("key", "GET", "/api/v1/budgets/").json()["data"]
        return names | {
            "request_id": self.message("s1"),
            "session_id": "s1",
            "side": "request",
            "export_id": export,
            "budget_id": budget["id"],
            "api_keys": f"apikey_{names['key_id']}",
            "users": "user_idle",
            "workspaces": "wrkspc_default",
        }


BUDGET = "from proxy.models import *; Budget.objects.create(team=Team.objects.get(name='default'), usd=9)"
QUERIES = {"starting_at": "2026-11-20T00:00:00Z", "model": MESSAGE["model"]}


def signed_in(url: str) -> httpx.Client:
    """The browser of the first start's superuser."""
    client = httpx.Client(base_url=url, timeout=90)
    client.get("/admin/login/")
    form = {"username": "admin", "password": PASSWORD, "next": "/admin/"}
    token = client.cookies["csrftoken"]
    answer = client.post("/admin/login/", data=form | {"csrfmiddlewaretoken": token})
    assert answer.status_code == 302, answer.text
    return client


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documented")
    environment = {"BRIDGE_ADMIN_PASSWORD": PASSWORD}
    with Gateway(folder, key="", environment=environment) as running:
        made = Site(running)
        yield made
        made.root.close()


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_of_the_schema_answers_as_it_describes(site, name):
    operation = OPERATIONS[name]
    method, path = name.split()
    kind = path.split("/")[3]
    names = site.doomed if method == "DELETE" else site.names
    by = "root" if method != "GET" and kind in DOOMED else "key"
    query = {one.name: QUERIES[one.name] for one in operation.query if one.is_required}
    if path.endswith("/claude_code"):
        query["starting_at"] = "2026-11-20"
    body = {"body": BODIES[name], "media_type": "application/json"} if name in BODIES else {}
    assert body or method not in {"POST", "PATCH"}
    case = operation.Case(
        method=method,
        path_parameters={
            one.name: names[kind if one.name == "ident" else one.name]
            for one in operation.path_parameters
        },
        query=query,
        headers=site.headers[by],
        cookies=dict(site.root.cookies) if by == "root" else {},
        **body,
    )

    answer = case.call(base_url=site.gateway.url)

    assert answer.status_code in SUCCESS & set(map(int, operation.definition.raw["responses"]))
    assert answer.headers["request-id"]
    case.validate_response(answer, checks=CHECKS)


SUCCESS = {200, 201, 202, 204}


@pytest.mark.parametrize("name", ROWS)
def test_each_other_documented_path_answers_as_its_row_describes(site, name):
    row = ROWS[name]
    method, path = name.split()

    answer = site.send(row.by, method, row.path or path, row.body)

    assert answer.status_code == row.status, answer.text
    assert answer.headers["content-type"].startswith(row.kind)
    assert answer.headers["request-id"] == answer.headers["x-bridge-request-id"]
    if row.kind == JSON:
        row.shape(answer.json())


def test_a_streamed_message_is_a_legal_stream(site):
    answer = site.send("key", "POST", "/v1/messages?beta=true", MESSAGE | {"stream": True})

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert faults_of_bytes(answer.content) == []


def test_the_live_feed_opens_for_a_signed_in_browser_only(site):
    upgrade = {
        "connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "origin": site.gateway.url,
    }  # fmt: skip
    cookie = {"cookie": "; ".join(f"{name}={text}" for name, text in site.root.cookies.items())}

    with httpx.Client(base_url=site.gateway.url, timeout=90) as client:
        with client.stream("GET", WEBSOCKET, headers=upgrade | cookie) as opened:
            assert opened.status_code == 101
        with client.stream("GET", WEBSOCKET, headers=upgrade) as refused:
            assert refused.status_code == 403


def test_the_schema_that_is_served_is_the_one_that_is_held_against_the_answers(site):
    served = site.send("anonymous", "GET", "/api/v1/schema/").json()

    assert set(served["paths"]) == set(schema()["paths"])


@pytest.mark.parametrize("path", [path for path in schema()["paths"] if path.startswith("/api/")])
def test_each_path_of_ours_answers_without_its_last_slash_too(site, path):
    filled = re.sub(r"\{(\w+)\}", lambda name: str(site.names[name[1]]), path)
    query = f"?model={QUERIES['model']}" if path.endswith("/rehearsal/") else ""

    answers = [site.send("key", "GET", one + query) for one in (filled, filled.removesuffix("/"))]

    assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("path", MISTAKEN)
def test_a_wrong_base_url_gets_json_and_no_page(site, path, method):
    answer = site.send("key", method, path, MESSAGE if method == "POST" else None)

    assert answer.status_code == 404
    assert answer.headers["content-type"] == JSON
    if method != "HEAD":
        error(answer.json())
        assert answer.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", ["/api/v1/usage/", f"{USAGE}?starting_at=2026-11-20T00:00:00Z"])
def test_a_report_answers_head_and_options_in_json(site, path, method):
    answer = site.send("key", method, path)

    assert answer.status_code == 200
    assert answer.headers["content-type"] == JSON


def test_names_that_end_like_a_path_of_the_gateway_are_names(site):
    """A team, a user, an upstream or a session may be called ``messages``."""
    for kind in ("teams", "users"):
        site.make(kind, name="messages")
    site.make("upstreams", name="messages", **UPSTREAM)
    site.message("a/v1/messages")
    paths = [
        "/api/v1/teams/messages", "/api/v1/users/messages", "/api/v1/upstreams/messages",
        "/api/v1/sessions/a/v1/messages", "/v1/organizations/users/user_messages",
        "/v1/organizations/workspaces/wrkspc_messages",
    ]  # fmt: skip

    found = {path: site.send("key", "GET", path).status_code for path in paths}

    assert found == dict.fromkeys(paths, 200)


def test_each_documented_routed_or_mounted_path_is_covered_here():
    """Docs, URL patterns, the router's tables: none holds a path that the tests above leave out."""
    covered = {*OPERATIONS, *ROWS}
    paths = {one.split()[1] for one in covered} | {WEBSOCKET}

    assert documented() - covered == {"GET /v1/organizations/..."}
    assert len(documented()) > 40
    assert mentioned() - paths == set()
    assert mounted() - {path.rstrip("/") for path in paths} == set()
    assert set(EXACT) - paths == set()
    assert [prefix for prefix in BELOW if not any(one.startswith(prefix) for one in paths)] == []


def documented() -> set[str]:
    """Each `` `METHOD /path` `` of the docs."""
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    found = {
        f"{method} {path}"
        for page in pages
        for method, path in re.findall(r"`([A-Z]+) (/[^`? ]*)", page.read_text(encoding="utf-8"))
    }
    # Our reports answer with and without the last slash; the schema has it.
    return {one + "/" if "/api/v1/" in one and one[-1] != "/" else one for one in found}


def mentioned() -> set[str]:
    """The paths of the table "Routes" in the docs that stand without a method."""
    text = (REPOSITORY / "docs/operate.md").read_text(encoding="utf-8")
    table = text.split("## Routes", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"`(/[^`]*)`", "".join(re.findall(r"^\| `.*?\|", table, re.MULTILINE))))


def mounted() -> set[str]:
    """Django's URL patterns; the admin's are covered by tests/site/test_access_matrix.py."""
    patterns = routes(get_resolver("bridge_project.urls").url_patterns)
    ours = (one for one in patterns if not one.startswith("admin/") and "(?P<rest>" not in one)
    return {"/" + re.sub(r"<\w+:(\w+)>", r"{\1}", one).rstrip("/") for one in ours}
