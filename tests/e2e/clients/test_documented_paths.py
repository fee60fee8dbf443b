"""Every documented path and method on a running server; each response matches its schema.

The list comes from the OpenAPI schema, the docs, the URL patterns and the router's tables. A path in
any of them without a row here fails.
"""

import re
import time
from typing import Any, NamedTuple

import httpx
import pytest
from anthropic.types import Message, MessageTokensCount, ModelInfo
from django.urls import get_resolver

from proxy.routing import EXACT_PATHS, PREFIXES
from tests.fakes.openapi import schema
from tests.fakes.openapi_operations import CHECKS, OPERATIONS
from tests.fakes.servers.gateway import REPOSITORY, Gateway
from tests.fakes.upstreams.grammar import faults_of_bytes
from tests.for_each import for_each
from tests.lanes import repeat
from tests.urls import url_routes

from .documented_site import BODIES, MESSAGE, OWN_KEYS, UPSTREAM, Site

DELETABLE = {
    "keys",
    "teams",
    "users",
    "models",
    "upstreams",
    "prices",
    "budgets",
    "pauses",
    "webhooks",
    "reports",
}
"""Kinds of objects of which an extra one is created for the DELETE requests."""


class Row(NamedTuple):
    """One request that the OpenAPI schema does not describe, with its expected response."""

    kind: str  # the media type
    shape: Any = dict  # called with a JSON body; raises if the body is invalid
    status: int = 200
    body: dict[str, Any] | None = None
    path: str = ""  # the requested path, if the documented one has a placeholder
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
    "GET /sign-in/": Row(HTML, status=404, by="anonymous"),  # without a sign-in provider
    "GET /sign-in/callback/": Row(HTML, status=404, by="anonymous"),
    "GET /api/v1/schema/": Row(JSON, by="anonymous"),
    "GET /api/v1/docs/": Row(HTML, by="anonymous"),
}  # fmt: skip
WEBSOCKET = "/ws/live/"
USAGE = "/v1/organizations/usage_report/messages"
WRONG_PATHS = [
    "/messages", "/messages/count_tokens", "/models", "/chat/completions", "/responses",
    "//v1/messages", "/v1//messages", "/v1/messages/", "/v1/messages/count_tokens/",
    "/v1/v1/messages?beta=true", "/v1/v1/messages/count_tokens", "/v1/v1/models", "/v1", "/v1/",
    "/anthropic/v1/messages", "/anthropic/v1/messages/count_tokens", "/anthropic/v1/models",
    f"/anthropic{USAGE}", "//v1/organizations/me", "/api/messages",
    "/api", "/api/v1", "/v1/organizations", "/v1%2F%2Fmessages", "/nope",
]  # fmt: skip
"""Paths of clients whose base URL has no /v1, has it twice, or has an extra prefix."""


QUERIES = {"starting_at": "2026-11-20T00:00:00Z", "model": MESSAGE["model"], "q": "Hello"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documented")
    with Gateway(folder, key="") as running:
        created = Site(running)
        yield created
        created.close()


@for_each("name", OPERATIONS)
def test_each_schema_operation_responds_as_described(site, name):
    operation = OPERATIONS[name]
    method, path = name.split()
    kind = path.split("/")[3]
    names = site.names_for(method, path)
    writes_setup = method != "GET" and kind in DELETABLE
    by = "root" if writes_setup or path.startswith(OWN_KEYS) else "key"
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


@for_each("name", ROWS)
def test_each_other_documented_path_responds_as_listed(site, name):
    row = ROWS[name]
    method, path = name.split()

    answer = site.send(row.by, method, row.path or path, row.body)

    assert answer.status_code == row.status, answer.text
    assert answer.headers["content-type"].startswith(row.kind)
    assert answer.headers["request-id"] == answer.headers["x-bridge-request-id"]
    if row.kind == JSON:
        row.shape(answer.json())


def test_streamed_message_is_a_valid_stream(site):
    answer = site.send("key", "POST", "/v1/messages?beta=true", MESSAGE | {"stream": True})

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert faults_of_bytes(answer.content) == []


def test_live_feed_requires_a_session(site):
    upgrade = {
        "connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "origin": site.gateway.url,
    }  # fmt: skip
    cookie = {"cookie": "; ".join(f"{name}={text}" for name, text in site.root.cookies.items())}

    with httpx.Client(base_url=site.gateway.url, timeout=90) as client:
        with client.stream("GET", WEBSOCKET, headers=upgrade | cookie) as upgraded:
            assert upgraded.status_code == 101
        with client.stream("GET", WEBSOCKET, headers=upgrade) as rejected:
            assert rejected.status_code == 403


def test_served_schema_is_the_tested_schema(site):
    served_schema = site.send("anonymous", "GET", "/api/v1/schema/").json()

    assert set(served_schema["paths"]) == set(schema()["paths"])


def slashed_paths() -> list[str]:
    """Return each path under /api/v1/ that can be read."""
    paths = schema()["paths"]
    return [one for one in paths if one.startswith("/api/v1/") and one[8:] and "get" in paths[one]]


@for_each("path", slashed_paths())
def test_report_paths_work_without_the_last_slash(site, path):
    by = "root" if path.startswith(OWN_KEYS) else "key"
    names = site.names_for("GET", path)
    filled = re.sub(r"\{(\w+)\}", lambda name: str(names[name[1]]), path)
    needed = {"dry-run": "model", "rehearsal": "model", "search": "q"}.get(
        path.rstrip("/").rpartition("/")[2]
    )
    query = f"?{needed}={QUERIES[needed]}" if needed else ""

    answer = site.send(by, "GET", filled.removesuffix("/") + query)

    assert answer.status_code == 200  # as with the slash, which is tested above


def test_a_key_is_rotated_with_and_without_the_last_slash(site):
    keys = [site.make("me/keys", team="default", name=f"turned-{n}") for n in range(2)]
    urls = [f"{OWN_KEYS}{key['id']}/rotate{end}" for key, end in zip(keys, ("/", ""), strict=True)]

    answers = [site.send("root", "POST", url, {"overlap_h": 0}) for url in urls]

    assert [answer.status_code for answer in answers] == [200, 200]
    for key, answer in zip(keys, answers, strict=True):
        assert answer.json()["secret"] != key["secret"]


WRONG_REQUESTS = [
    (path, method)
    for path in WRONG_PATHS
    for method in ("GET", "HEAD", "POST", "OPTIONS", "DELETE")
    if method == "POST" or path in repeat(fast=WRONG_PATHS[:1], slow=WRONG_PATHS)
]
"""Each path with POST and each method with one path; the slow lane has all of them."""


@pytest.mark.repeated
@for_each(("path", "method"), WRONG_REQUESTS)
def test_wrong_base_url_gets_a_json_error(site, path, method):
    answer = site.send("key", method, path, MESSAGE if method == "POST" else None)

    assert answer.status_code == 404
    assert answer.headers["content-type"] == JSON
    if method != "HEAD":
        error(answer.json())
        assert answer.json()["error"]["type"] == "not_found_error"


@for_each("method", ["HEAD", "OPTIONS"])
@for_each("path", ["/api/v1/usage/", f"{USAGE}?starting_at=2026-11-20T00:00:00Z"])
def test_reports_respond_to_head_and_options_with_json(site, path, method):
    answer = site.send("key", method, path)

    assert answer.status_code == 200
    assert answer.headers["content-type"] == JSON


def test_object_names_may_equal_path_segments(site):
    """A team, a user, an upstream or a session may have the name ``messages``."""
    for kind in ("teams", "users"):
        site.make(kind, name="messages")
    site.make("upstreams", name="messages", **UPSTREAM)
    site.message("a/v1/messages")
    paths = [
        "/api/v1/teams/messages", "/api/v1/users/messages", "/api/v1/upstreams/messages",
        "/api/v1/sessions/a/v1/messages", "/v1/organizations/users/user_messages",
        "/v1/organizations/workspaces/wrkspc_messages",
    ]  # fmt: skip

    result = {path: site.send("key", "GET", path).status_code for path in paths}

    assert result == dict.fromkeys(paths, 200)


def test_every_documented_and_routed_path_is_tested():
    """Every path of the docs, URL patterns and router tables is tested above."""
    covered = {*OPERATIONS, *ROWS}
    paths = {one.split()[1] for one in covered} | {WEBSOCKET}

    assert documented() - covered == {"GET /v1/organizations/..."}
    assert len(documented()) > 40
    assert mentioned() - paths == set()
    assert mounted() - {path.rstrip("/") for path in paths} == set()
    assert set(EXACT_PATHS) - paths == set()
    assert [prefix for prefix in PREFIXES if not any(one.startswith(prefix) for one in paths)] == []


def documented() -> set[str]:
    """Return each `` `METHOD /path` `` of the docs."""
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    result = {
        f"{method} {path}"
        for page in pages
        for method, path in re.findall(r"`([A-Z]+) (/[^`? ]*)", page.read_text(encoding="utf-8"))
    }
    # The reports accept paths with and without the last slash; the schema has it.
    return {one + "/" if "/api/v1/" in one and one[-1] != "/" else one for one in result}


def mentioned() -> set[str]:
    """Return the paths without a method in the docs' table "Routes"."""
    text = (REPOSITORY / "docs/operate.md").read_text(encoding="utf-8")
    table = text.split("## Routes", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"`(/[^`]*)`", "".join(re.findall(r"^\| `.*?\|", table, re.MULTILINE))))


def mounted() -> set[str]:
    """Return Django's URL patterns; tests/repo/access/test_access_matrix.py covers the admin's."""
    patterns = url_routes(get_resolver("bridge_project.urls").url_patterns)
    ours = (one for one in patterns if not one.startswith("admin/") and "(?P<rest>" not in one)
    return {"/" + re.sub(r"<\w+:(\w+)>", r"{\1}", one).rstrip("/") for one in ours}


def test_the_running_gateway_sends_a_test_event(site):
    """No server listens at the URL of the webhook, so the attempt fails at once."""
    webhook = site.make("webhooks", name="silent", url="http://127.0.0.1:9/")
    sent = site.make("deliveries", webhook_id=webhook["id"])
    path, deadline = f"/api/v1/deliveries/{sent['id']}/", time.monotonic() + 60

    while not (found := site.send("key", "GET", path).json())["error"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)

    assert (found["error"], found["state"]) == ("ConnectError", "waiting")
    metrics = site.send("anonymous", "GET", "/metrics").text
    assert 'bridge_webhook_deliveries_total{result="retried"}' in metrics
