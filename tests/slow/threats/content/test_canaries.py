"""Ten marked secrets, a gateway that gets every kind of response, and every output and file.

No output and no file may contain a secret, and no file the content of a team that stores none.
"""

import contextlib
import re
import secrets
from pathlib import Path

import httpx
import pytest

from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.upstreams.script_steps import (
    Reset,
    chunk,
    html_response,
    json_response,
    not_http,
    response,
    stream_head,
)
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.lanes import repeat
from tests.proxy.gateway import upstream_scripts
from tests.slow.threats import raw_http

CANARIES = {
    name: f"{prefix}canary{secrets.token_hex(12)}"
    for name, prefix in {
        "upstream key": "sk-", "gateway key": "sk-br-", "quiet key": "sk-br-", "wrong key": "sk-br-",
        "admin password": "Pw-", "root": "root-" + "0123456789abcdefghijklmnopqrstuvwxyz" * 2, "hook secret": "whsec_aa",
        "quiet words": "prompt-", "quiet answer": "answer-", "mail password": "mp-",
    }.items()
}  # fmt: skip
TRANSCRIPTS = repeat(fast=8, slow=25)
"""Number of requests whose page is read."""

CONFIG = """
[[routes]]
model = "*"
targets = [{ upstream = "chat" }]
[[teams]]
name = "quiet"
store = "metadata"
[[keys]]
team = "quiet"
name = "quiet"
secret = { env = "BRIDGE_KEY_QUIET" }
[[budgets]]
team = "e2e"
usd = "500"
period = "month"
hard = false
[[webhooks]]
name = "ops"
url = "https://hooks.example.com/x"
secret = { env = "HOOK_SECRET" }
"""
PAGES = (
    "/admin/", "/admin/proxy/exchange/", "/admin/proxy/apikey/", "/admin/proxy/team/", "/admin/proxy/upstream/",
    "/admin/proxy/route/", "/admin/proxy/budget/", "/admin/proxy/price/", "/admin/proxy/upstream/1/change/",
    "/admin/proxy/apikey/1/change/", "/admin/proxy/apikey/2/change/", "/admin/proxy/team/1/change/", "/admin/auth/user/1/change/",
    "/admin/proxy/webhook/", "/admin/proxy/webhook/1/change/", "/admin/proxy/webhookdelivery/", "/api/v1/webhooks/", "/api/v1/deliveries/",
    "/admin/proxy/budget/1/change/", "/api/v1/upstreams/", "/api/v1/keys/", "/api/v1/teams/", "/api/v1/me/", "/api/v1/models/",
    "/api/v1/requests/?from=2026-01-01&to=2027-01-01", "/api/v1/budgets/", "/api/v1/users/", "/api/v1/schema/",
    "/healthz", "/readyz", "/metrics", "/", "/v1/models", "/v1/organizations/api_keys", "/v1/organizations/me",
    "/admin/nowhere/", "/nowhere", "/v1/nowhere", "/admin/proxy/exchange/req_0/change/",
)  # fmt: skip


def error_responses():
    """Responses of an upstream that repeats the gateway's credential and names internal addresses."""
    echo = {
        "error": {
            "message": f"bad key {CANARIES['upstream key']} at http://10.0.0.7/internal",
            "type": "x",
        }
    }
    headers_with_key = {
        "www-authenticate": CANARIES["upstream key"],
        "x-request-id": CANARIES["upstream key"][:5],
    }
    for status in (400, 401, 403, 404, 413, 418, 429, 500, 502, 503, 529):
        yield f"status-{status}", json_response(echo, status, headers_with_key)
    yield "page", html_response(502)
    yield "text", response(500, CANARIES["upstream key"].encode(), "text/plain")
    yield "inside", json_response(echo)
    yield "not-http", not_http(CANARIES["upstream key"].encode())
    yield "cut", [stream_head(), chunk(upstream_scripts.chat_chunk({"content": "x"})), Reset()]
    yield (
        "broken",
        upstream_scripts.pieces([b"data: {broken " + CANARIES["upstream key"].encode() + b"\n\n"]),
    )
    yield (
        "in-stream",
        upstream_scripts.pieces(
            [upstream_scripts.chat_chunk({"content": "x"}), upstream_scripts.sse(echo)]
        ),
    )


@pytest.fixture(scope="module")
def exercised(tmp_path_factory):
    """A running gateway that has received all these responses, with its replies."""
    folder = tmp_path_factory.mktemp("canaries")
    environment = {
        "BRIDGE_KEY_QUIET": CANARIES["quiet key"], "E2E_UPSTREAM_KEY": CANARIES["upstream key"],
        "BRIDGE_ADMIN_PASSWORD": CANARIES["admin password"], "BRIDGE_SECRET_KEY": CANARIES["root"],
        "HOOK_SECRET": CANARIES["hook secret"], "BRIDGE_SMTP_PASSWORD": CANARIES["mail password"],
    }  # fmt: skip
    with ScriptedUpstream() as upstream:
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, CONFIG)
        gateway = Gateway(
            folder,
            config=config,
            environment=environment,
            key=CANARIES["gateway key"],
            with_admin=False,
        )
        with gateway:
            yield gateway, upstream, list(send_requests(gateway, upstream))


def send_requests(gateway, upstream):
    for name, script in error_responses():
        upstream.on(name, script)
        for fields in ({"stream": True}, {}):
            body = raw_http.messages_body(model=name, **fields)
            yield gateway.request(
                "POST", "/v1/messages", body, {"content-type": "application/json"}
            )
    for fields in ({"stream": True}, {}):  # a team that stores no content
        upstream.on("quiet", upstream_scripts.chat(CANARIES["quiet answer"]))
        body = raw_http.messages_body(
            model="quiet", messages=[{"role": "user", "content": CANARIES["quiet words"]}], **fields
        )
        reply = gateway.request("POST", "/v1/messages", body, {"x-api-key": CANARIES["quiet key"]})
        assert CANARIES["quiet answer"] in reply.body.decode()
    for broken in (
        {"max_tokens": CANARIES["quiet words"]},
        {"tools": [{"name": CANARIES["quiet words"] * 9}]},
    ):
        gateway.request(
            "POST",
            "/v1/messages",
            raw_http.messages_body(**broken),
            {"x-api-key": CANARIES["quiet key"]},
        )
    yield gateway.request("POST", "/v1/messages", b"{}", {"x-api-key": CANARIES["wrong key"]})
    yield gateway.request("GET", "/api/v1/me/", None, {"x-api-key": CANARIES["wrong key"]})


def sign_in(gateway):
    client = httpx.Client(base_url=gateway.url, timeout=30)
    client.get("/admin/login/")
    form = {"username": "admin", "password": CANARIES["admin password"], "next": "/admin/",
            "csrfmiddlewaretoken": client.cookies["csrftoken"]}  # fmt: skip
    assert client.post("/admin/login/", data=form).status_code == 302
    return client


def secrets_in(text, *allowed):
    return {name for name, canary in CANARIES.items() if canary in text} - set(allowed)


def test_no_response_contains_a_secret(exercised):
    _, _, answers = exercised

    secrets_by_reply = {
        n: secrets_in(repr(reply.headers) + reply.body.decode()) for n, reply in enumerate(answers)
    }

    assert len(answers) > 30
    assert {n: found for n, found in secrets_by_reply.items() if found} == {}
    assert not any("10.0.0.7" in reply.body.decode() for reply in answers)


@pytest.mark.repeated
def test_no_page_report_or_metric_contains_a_secret(exercised):
    gateway, _, _ = exercised
    leaks = {}
    with contextlib.closing(sign_in(gateway)) as client:
        pages = list(PAGES)
        listed = client.get("/admin/proxy/exchange/").text
        found = sorted(set(re.findall(r"/admin/proxy/exchange/req_\w+/change/", listed)))
        pages += found[:TRANSCRIPTS]
        for page in pages:
            answer = client.get(page)
            if found := secrets_in(answer.text + repr(answer.headers)):
                leaks[page] = found
        with_key = [gateway.request("GET", page) for page in PAGES]

    assert len(pages) == len(PAGES) + TRANSCRIPTS
    assert leaks == {}
    assert not [reply for reply in with_key if secrets_in(reply.body.decode())]


@pytest.mark.parametrize(
    "command",
    [("exportledger", "--open"), ("exportconfig",), ("dumpdata",)],
)
def test_no_command_prints_a_secret(exercised, command):
    gateway, _, _ = exercised

    text = gateway.manage(*command)
    assert secrets_in(text) == set(), re.findall(r"[^,]{0,80}canary[^,]{0,60}", text)


def test_log_has_no_secret_and_no_traceback(exercised):
    gateway, _, _ = exercised

    assert secrets_in(gateway.log) == set()
    assert "Traceback" not in gateway.log


def test_upstream_receives_only_its_own_secret(exercised):
    _, upstream, _ = exercised

    text = "".join(repr(request.headers) + request.body.decode() for request in upstream.requests)

    assert secrets_in(text, "upstream key", "quiet words") == set()
    assert not re.search(r"\be2e\b", text)  # the team's name; canaries are hexadecimal
    assert "tests" not in text  # neither the team nor the key


def test_disk_has_no_secret_and_no_text_of_a_metadata_only_team(exercised):
    """Runs last: the gateway stops, which writes its memory to disk."""
    gateway, _, _ = exercised
    gateway.stop()
    files = [path for path in Path(gateway.folder, "data").rglob("*") if path.is_file()]

    secrets_by_file = {path.name: secrets_in(path.read_bytes().decode("latin-1")) for path in files}

    assert len(files) >= 3
    assert {name: found for name, found in secrets_by_file.items() if found} == {}
    assert not [path for path in files if path.stat().st_mode & 0o077]
