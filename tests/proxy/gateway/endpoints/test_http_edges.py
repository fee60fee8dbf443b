"""What clients meet at the edges: refusals that a retry cannot change, browsers, tags, globs."""

import pytest

from proxy.gateway.http.errors import HttpError
from proxy.ids import new_ulid
from proxy.models import ApiKey, Price, Team
from tests.for_each import for_each
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import add_route, add_upstream, message, row

ORIGIN = "http://localhost:5173"
PREFLIGHT = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,anthropic-version,content-type",
}


@for_each(
    ("status", "final"),
    [
        (400, False), (401, True), (402, True), (403, True), (404, True), (405, True),
        (408, False), (409, False), (413, False), (415, True), (429, False), (500, False),
        (503, False), (529, False),
    ],
)  # fmt: skip
def test_errors_that_a_retry_cannot_change_say_so(status, final):
    headers = HttpError(status, "x", "m", {"a": "b"}).headers

    assert (headers.get("x-should-retry") == "false", headers["a"]) == (final, "b")


@for_each(
    ("request_line", "key", "status"),
    [
        ("POST /v1/messages", "bad", 401),
        ("POST /v1/messages/count_tokens", "bad", 401),
        ("GET /v1/models", "bad", 401),
        ("GET /v1/models", "", 401),
        ("GET /v1/organizations/usage_report/messages", "bad", 401),
        ("GET /api/v1/summary", "bad", 401),
        ("POST /v1/messages", "reports", 403),
        ("GET /v1/models", "reports", 403),
        ("POST /api/v1/pauses", "reports", 403),
        ("DELETE /v1/messages", "bad", 405),
    ],
)
def test_a_client_does_not_repeat_a_request_with_a_wrong_key(
    gateway, reload, request_line, key, status
):
    method, path = request_line.split()
    team, _ = Team.objects.get_or_create(name="readers")
    _, secret = ApiKey.issue(team, f"reader-{new_ulid()}", scopes=["reports"])
    reload()
    headers = {"x-api-key": secret if key == "reports" else key} if key else {}

    reply = gateway.request(method, path, b"{}", {"content-type": "application/json", **headers})

    assert reply.status == status, reply.body
    assert reply.headers["x-should-retry"] == "false"


@for_each(
    ("path", "methods"),
    [
        ("/v1/messages", "POST"),
        ("/v1/messages?beta=true", "POST"),
        ("/v1/messages/count_tokens", "POST"),
        ("/v1/models", "GET, HEAD"),
        ("/v1/models/any", "GET, HEAD"),
    ],
)
def test_a_browser_may_ask_before_it_sends(gateway, path, methods):
    reply = gateway.request("OPTIONS", path, headers=PREFLIGHT)

    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == "*"
    assert reply.headers["access-control-allow-methods"] == methods
    assert reply.headers["access-control-allow-headers"] == "*, authorization"
    assert "access-control-allow-credentials" not in reply.headers


@for_each(
    ("path", "headers"),
    [
        ("/v1/messages", {}),
        ("/v1/messages", {"origin": ORIGIN}),
        ("/v1/organizations/me", PREFLIGHT),
        ("/api/v1/summary", PREFLIGHT),
        ("/admin/login/", PREFLIGHT),
        ("/v1/nowhere", PREFLIGHT),
        ("/metrics", PREFLIGHT),
    ],
)
def test_no_other_path_and_no_other_request_is_opened_to_pages(gateway, path, headers):
    reply = gateway.request("OPTIONS", path, headers=headers)

    assert reply.status != 204
    assert "access-control-allow-methods" not in reply.headers
    if path != "/v1/messages":
        assert "access-control-allow-origin" not in reply.headers


def test_a_page_can_read_answers_and_errors(gateway, scripted):
    scripted.on("chat-page", upstream_scripts.chat())

    answers = [
        gateway.post(message("chat-page", stream=True), origin=ORIGIN),
        gateway.post(message("chat-page"), origin=ORIGIN, x_api_key="bad"),
        gateway.post(b"{", origin=ORIGIN),
    ]
    own = gateway.post(message("chat-page"))

    assert [each.status for each in answers] == [200, 401, 400]
    assert {each.headers["access-control-allow-origin"] for each in answers} == {"*"}
    assert "access-control-allow-origin" not in own.headers


@for_each(
    ("tags", "stored"),
    [
        ({"cost-center": "blue/7"}, {"cost-center": "blue/7"}),
        ({"a": "body", "h": "body"}, {"a": "body"}),
        ({"a": 5, "b": "x" * 201, "c d": "x", "": "x", "ok": "x"}, {"ok": "x"}),
        ({f"t{n}": "x" for n in range(99)}, {f"t{n}": "x" for n in range(16)}),
        (["a"], {}),
        ("a=b", {}),
        (None, {}),
    ],
)
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_tags_of_the_body_are_recorded_and_not_sent(gateway, scripted, dialect, tags, stored):
    script = getattr(upstream_scripts, dialect)()
    scripted.on(f"{dialect}-tagged", script)
    headers = {"x_gateway_tags": "h=header", "anthropic_beta": "request-tags-2026-08-21"}

    reply = gateway.post(message(f"{dialect}-tagged", tags=tags), x_bridge_strict="true", **headers)

    assert reply.status == 200, reply.body
    assert row(reply.id).tags == stored | {"h": "header"}
    assert b"tags" not in scripted.requests_for(f"{dialect}-tagged")[-1].body


def test_a_glob_shows_the_models_of_the_price_list(gateway, scripted, reload):
    native = add_upstream("native", "anthropic", scripted.url, "anthropic")
    other = add_upstream("other", "chat", scripted.base_url)
    team = Team.objects.create(name="globs", models_allowed=["claude-*", "gpt-*"])
    _, key = ApiKey.issue(team, "k", scopes=["messages"])
    add_route("claude-*", native, team=team)
    add_route("*", other, team=team)
    for name, upstream in (
        ("claude-new-9", None),
        ("claude-new-8", native),
        ("claude-new-7", other),  # its route serves another upstream
        ("gpt-new-9", None),
        ("o-new-9", None),  # the team may not use it
    ):
        Price.objects.create(upstream=upstream, model=name, since="2026-01-01", input=1, output=1)
    reload()

    reply = gateway.request("GET", "/v1/models?limit=1000", headers={"x-api-key": key})

    listed = {each["id"] for each in reply.json["data"]}
    assert {name for name in listed if "new" in name} == {
        "claude-new-9", "claude-new-8", "gpt-new-9",
    }  # fmt: skip
