"""Ten planted secrets, a gateway that meets every kind of answer, and every place that tells or keeps.

None of the places may hold one; the words of a team that keeps none may be nowhere on the disk.
"""

import contextlib
import re
import secrets
from pathlib import Path

import httpx
import pytest

from tests.fakes.gateway import Gateway, toml_for
from tests.fakes.steps import Reset, answer, chunk, garbage, html_answer, json_answer, stream_head
from tests.fakes.upstream import ScriptedUpstream
from tests.proxy.gateway import scripts

from . import wire

CANARIES = {
    name: f"{prefix}canary{secrets.token_hex(12)}"
    for name, prefix in {
        "upstream key": "sk-", "gateway key": "sk-br-", "quiet key": "sk-br-", "wrong key": "sk-br-",
        "admin password": "Pw-", "root": "root-" + "0123456789abcdefghijklmnopqrstuvwxyz" * 2, "hook secret": "hs-",
        "quiet words": "prompt-", "quiet answer": "answer-", "mail password": "mp-",
    }.items()
}  # fmt: skip
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
webhook = "https://hooks.example.com/x"
webhook_secret = { env = "HOOK_SECRET" }
"""
PAGES = (
    "/admin/", "/admin/proxy/exchange/", "/admin/proxy/apikey/", "/admin/proxy/team/", "/admin/proxy/upstream/",
    "/admin/proxy/route/", "/admin/proxy/budget/", "/admin/proxy/price/", "/admin/proxy/upstream/1/change/",
    "/admin/proxy/apikey/1/change/", "/admin/proxy/apikey/2/change/", "/admin/proxy/team/1/change/", "/admin/auth/user/1/change/",
    "/admin/proxy/budget/1/change/", "/api/v1/upstreams/", "/api/v1/keys/", "/api/v1/teams/", "/api/v1/me/", "/api/v1/models/",
    "/api/v1/requests/?from=2026-01-01&to=2027-01-01", "/api/v1/budgets/", "/api/v1/users/", "/api/v1/schema/",
    "/healthz", "/readyz", "/metrics", "/", "/v1/models", "/v1/organizations/api_keys", "/v1/organizations/me",
    "/admin/nowhere/", "/nowhere", "/v1/nowhere", "/admin/proxy/exchange/req_0/change/",
)  # fmt: skip


def faults():
    """Answers of an upstream that repeats what it was told, and says what it should not."""
    echo = {
        "error": {
            "message": f"bad key {CANARIES['upstream key']} at http://10.0.0.7/internal",
            "type": "x",
        }
    }
    loud = {
        "www-authenticate": CANARIES["upstream key"],
        "x-request-id": CANARIES["upstream key"][:5],
    }
    for status in (400, 401, 403, 404, 413, 418, 429, 500, 502, 503, 529):
        yield f"status-{status}", json_answer(echo, status, loud)
    yield "page", html_answer(502)
    yield "text", answer(500, CANARIES["upstream key"].encode(), "text/plain")
    yield "inside", json_answer(echo)
    yield "garbage", garbage(CANARIES["upstream key"].encode())
    yield "cut", [stream_head(), chunk(scripts.chat_chunk({"content": "x"})), Reset()]
    yield (
        "broken",
        scripts.pieces([b"data: {broken " + CANARIES["upstream key"].encode() + b"\n\n"]),
    )
    yield "in-stream", scripts.pieces([scripts.chat_chunk({"content": "x"}), scripts.sse(echo)])


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """A gateway that has been through all that, still running; what it answered so far."""
    folder = tmp_path_factory.mktemp("canaries")
    environment = {
        "BRIDGE_KEY_QUIET": CANARIES["quiet key"], "E2E_UPSTREAM_KEY": CANARIES["upstream key"],
        "BRIDGE_ADMIN_PASSWORD": CANARIES["admin password"], "BRIDGE_SECRET_KEY": CANARIES["root"],
        "HOOK_SECRET": CANARIES["hook secret"], "BRIDGE_SMTP_PASSWORD": CANARIES["mail password"],
    }  # fmt: skip
    with ScriptedUpstream() as upstream:
        config = toml_for({"chat": {"dialect": "chat", "base_url": upstream.base_url}}, CONFIG)
        gateway = Gateway(
            folder, config=config, environment=environment, key=CANARIES["gateway key"]
        )
        with gateway:
            yield gateway, upstream, list(live(gateway, upstream))


def live(gateway, upstream):
    for name, script in faults():
        upstream.on(name, script)
        for ask in ({"stream": True}, {}):
            body = wire.question(model=name, **ask)
            yield gateway.ask("POST", "/v1/messages", body, {"content-type": "application/json"})
    for ask in ({"stream": True}, {}):  # a team that keeps no words
        upstream.on("quiet", scripts.chat(CANARIES["quiet answer"]))
        said = wire.question(
            model="quiet", messages=[{"role": "user", "content": CANARIES["quiet words"]}], **ask
        )
        reply = gateway.ask("POST", "/v1/messages", said, {"x-api-key": CANARIES["quiet key"]})
        assert CANARIES["quiet answer"] in reply.body.decode()
    for broken in (
        {"max_tokens": CANARIES["quiet words"]},
        {"tools": [{"name": CANARIES["quiet words"] * 9}]},
    ):
        gateway.ask(
            "POST", "/v1/messages", wire.question(**broken), {"x-api-key": CANARIES["quiet key"]}
        )
    yield gateway.ask("POST", "/v1/messages", b"{}", {"x-api-key": CANARIES["wrong key"]})
    yield gateway.ask("GET", "/api/v1/me/", None, {"x-api-key": CANARIES["wrong key"]})


def signed_in(gateway):
    client = httpx.Client(base_url=gateway.url, timeout=30)
    client.get("/admin/login/")
    told = {"username": "admin", "password": CANARIES["admin password"], "next": "/admin/",
            "csrfmiddlewaretoken": client.cookies["csrftoken"]}  # fmt: skip
    assert client.post("/admin/login/", data=told).status_code == 302
    return client


def found_in(text, *spared):
    return {name for name, canary in CANARIES.items() if canary in text} - set(spared)


def test_no_answer_says_a_secret(lived):
    _, _, answers = lived

    told = {
        n: found_in(repr(reply.headers) + reply.body.decode()) for n, reply in enumerate(answers)
    }

    assert len(answers) > 30
    assert {n: found for n, found in told.items() if found} == {}
    assert not any("10.0.0.7" in reply.body.decode() for reply in answers)


def test_no_page_report_or_gauge_says_a_secret(lived):
    gateway, _, _ = lived
    wrong = {}
    with contextlib.closing(signed_in(gateway)) as client:
        pages = list(PAGES)
        listed = client.get("/admin/proxy/exchange/").text
        pages += sorted(set(re.findall(r"/admin/proxy/exchange/req_\w+/change/", listed)))[:25]
        for page in pages:
            answer = client.get(page)
            if found := found_in(answer.text + repr(answer.headers)):
                wrong[page] = found
        with_key = [gateway.ask("GET", page) for page in PAGES]

    assert len(pages) > len(PAGES) + 10
    assert wrong == {}
    assert not [reply for reply in with_key if found_in(reply.body.decode())]


@pytest.mark.parametrize(
    "command",
    [("exportledger", "--open"), ("exportconfig",), ("dumpdata",)],
)
def test_no_command_prints_a_secret(lived, command):
    gateway, _, _ = lived

    told = gateway.manage(*command)
    assert found_in(told) == set(), re.findall(r"[^,]{0,80}canary[^,]{0,60}", told)


def test_the_log_holds_no_secret_and_no_traceback_of_a_client(lived):
    gateway, _, _ = lived

    assert found_in(gateway.log) == set()
    assert "Traceback" not in gateway.log


def test_the_upstream_is_told_its_own_secret_and_no_other(lived):
    _, upstream, _ = lived

    told = "".join(repr(asked.headers) + asked.body.decode() for asked in upstream.asked)

    assert found_in(told, "upstream key", "quiet words") == set()
    assert not re.search(r"\be2e\b", told)  # its team; canaries are hexadecimal
    assert "tests" not in told  # neither the team nor the key


def test_the_disk_holds_no_secret_and_no_word_of_who_keeps_none(lived):
    """Last of all: the gateway stops, so that what was in memory is on the disk."""
    gateway, _, _ = lived
    gateway.stop()
    files = [path for path in Path(gateway.folder, "data").rglob("*") if path.is_file()]

    held = {path.name: found_in(path.read_bytes().decode("latin-1")) for path in files}

    assert len(files) >= 3
    assert {name: found for name, found in held.items() if found} == {}
    assert not [path for path in files if path.stat().st_mode & 0o077]
