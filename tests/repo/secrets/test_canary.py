"""Plant ten secrets, set every logger to DEBUG, and search all output (T16, T17, T34).

The secrets come from the environment, a file, a form, the database URL and a client's header. The
search covers responses, pages, reports, commands, logs, the database with its compressed values, and the
data files. A secret counts as found when 16 characters of its middle appear, plain or as hex, base64
or percent-encoding.
"""

import base64
import contextlib
import re
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import httpx
import psycopg
import pytest
from psycopg import sql

from proxy.ledger.transcripts import part_codec
from tests.fakes.servers import oidc
from tests.fakes.servers.gateway import Gateway, toml_for
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.upstreams.script_steps import html_response, json_response, response
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream
from tests.lanes import repeat
from tests.proxy.gateway import upstream_scripts
from tests.slow.threats import raw_http

pytestmark = pytest.mark.timeout(300)


def planted(mark: str) -> str:
    return f"{mark}{secrets.token_hex(20)}"


SECRETS = {
    "gateway key": planted("sk-br-"),
    "upstream secret by environment": planted("sk-"),
    "upstream secret by file": planted("filed-"),
    "upstream secret in the database": planted("sealed-"),
    "webhook secret": "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode(),
    "sign-in client secret": oidc.CLIENT_SECRET,
    "secret key": planted("root-") + "kQ7zXw9",
    "admin password": planted("Pw-"),
    "database password": planted("db-"),
    "foreign Authorization": planted("sk-ant-oat01-"),
}
CONFIG = """
[[routes]]
model = "env-*"
targets = [{ upstream = "env" }]

[[routes]]
model = "file-*"
targets = [{ upstream = "filed" }]

[[budgets]]
team = "e2e"
usd = "0.000001"
hard = false

[[webhooks]]
name = "ops"
url = "https://127.0.0.1:9/hook"
secret = { env = "CANARY_HOOK" }

[[prices]]
model = "env-fine"
since = 2026-01-01
usd = { input = "10", output = "10" }
"""


def windows(secret: str) -> set[bytes]:
    """Return the middle of a secret in each encoding that output could use."""
    start = (len(secret) - 16) // 2
    core = secret[start : start + 16]
    encoded = {core, quote(core), core.encode().hex(), core.encode().hex().upper()}
    encoded |= {base64.b64encode(b"x" * shift + core.encode()).decode()[4:20] for shift in range(3)}
    return {each.encode() for each in encoded}


WINDOWS = {name: windows(secret) for name, secret in SECRETS.items()}


def found_in(place: bytes | str) -> set[str]:
    raw = place.encode(errors="replace") if isinstance(place, str) else place
    return {name for name, cores in WINDOWS.items() if any(core in raw for core in cores)}


def credentials_of(request: ReceivedRequest) -> str:
    """Return the credentials that the gateway sent to the upstream."""
    return " ".join(
        value for name, value in request.headers.items() if name in {"authorization", "x-api-key"}
    )


def script_for(request: ReceivedRequest):
    """Return a response that repeats the request's credentials in the way the model names."""
    kind = request.model.rpartition("-")[2]
    echo = {
        "error": {
            "message": f"refused {credentials_of(request)}",
            "type": "x",
            "code": credentials_of(request),
        }
    }
    if kind.isdigit():
        return json_response(
            echo,
            int(kind),
            {"x-request-id": credentials_of(request), "via": credentials_of(request)},
        )
    return {
        "html": html_response(502) + response(502, credentials_of(request).encode(), "text/html"),
        "text": response(500, credentials_of(request).encode(), "text/plain"),
        "stream": upstream_scripts.pieces(
            [upstream_scripts.chat_chunk({"content": "x"}), upstream_scripts.sse(echo)]
        ),
        "broken": upstream_scripts.pieces(
            [b"data: {" + credentials_of(request).encode() + b"\n\n"]
        ),
    }.get(kind, upstream_scripts.chat())


KINDS = (
    "fine", "400", "401", "403", "404", "429", "500", "503", "html", "text", "stream", "broken",
)  # fmt: skip


KINDS_OF_SOURCE = {
    "env": KINDS,
    **dict.fromkeys(("file", "sealed"), repeat(fast=("fine", "401", "html"), slow=KINDS)),
}
"""Source of the upstream's secret -> the responses that its upstream gives."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Postgres]]:
    folder = tmp_path_factory.mktemp("canary")
    filed = folder / "upstream-key"
    filed.write_text(SECRETS["upstream secret by file"])
    with Postgres() as server, ScriptedUpstream() as upstream, oidc.Provider() as provider:
        server.delete_admin()  # the gateway creates it, with a password to look for
        upstream.choose(script_for)
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.repo.secrets.canary_settings",
            "DATABASE_URL": server.url.replace(
                "bridge@", f"bridge:{SECRETS['database password']}@"
            ),
            "E2E_UPSTREAM_KEY": SECRETS["upstream secret by environment"],
            "CANARY_HOOK": SECRETS["webhook secret"],
            "BRIDGE_SECRET_KEY": SECRETS["secret key"],
            "BRIDGE_ADMIN_PASSWORD": SECRETS["admin password"],
            "BRIDGE_OIDC_ISSUER": provider.issuer,
            "BRIDGE_OIDC_CLIENT_ID": oidc.CLIENT_ID,
            "BRIDGE_OIDC_CLIENT_SECRET": SECRETS["sign-in client secret"],
            "BRIDGE_OIDC_GROUPS": "staff=auditor",
        }
        config = toml_for({"env": {"dialect": "chat", "base_url": upstream.base_url}}, CONFIG)
        config += (
            f'\n[[upstreams]]\nname = "filed"\ndialect = "chat"\nbase_url = "{upstream.base_url}"\n'
            f'api_key = {{ file = "{filed}" }}\n'
        )
        gateway = Gateway(
            folder / "gateway", config=config, environment=environment,
            key=SECRETS["gateway key"], ready_within_s=120,
        )  # fmt: skip
        with gateway:
            gateway.provider, gateway.upstream_url = provider, upstream.base_url
            yield gateway, server


@pytest.fixture(scope="module")
def browser(world) -> Iterator[httpx.Client]:
    gateway, _ = world
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        form = {"username": "admin", "next": "/admin/"}
        posted(client, "/admin/login/", {**form, "password": "wrong" + SECRETS["admin password"]})
        assert posted(
            client, "/admin/login/", {**form, "password": SECRETS["admin password"]}
        ).is_redirect
        yield client


def posted(client: httpx.Client, page: str, form: dict[str, str]) -> httpx.Response:
    client.get(page)
    fields = {**form, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
    return client.post(page, data=fields)


@pytest.fixture(scope="module")
def responses(world, browser) -> list[tuple[str, bytes]]:
    """Run valid and invalid requests; return the responses of the gateway."""
    gateway, server = world
    found: list[tuple[str, bytes]] = []

    def keep(what: str, reply: httpx.Response) -> None:
        found.append((what, f"{reply.headers!r}".encode() + reply.content))

    sealed = {
        "name": "sealed", "dialect": "chat", "base_url": gateway.upstream_url,
        "new_secret": SECRETS["upstream secret in the database"], "enabled": "on",
        "profile": "generic",
        "when_client_leaves": "abort", "connection_reuse": "shared", "connection": "{}",
    }  # fmt: skip
    keep(
        "a wrong form",
        posted(browser, "/admin/proxy/upstream/add/", {**sealed, "timeouts_0": "soon"}),
    )
    added = posted(browser, "/admin/proxy/upstream/add/", sealed)
    assert added.is_redirect, added.text
    with contextlib.closing(psycopg.connect(server.url)) as link:
        ((upstream,),) = link.execute(
            "SELECT id FROM proxy_upstream WHERE name = 'sealed'"
        ).fetchall()
    route = {
        "model": "sealed-*", "team": "", "position": "0", "targets-TOTAL_FORMS": "1",
        "targets-INITIAL_FORMS": "0", "targets-0-upstream": str(upstream), "targets-0-position": "0",
        "targets-0-weight": "1",
    }  # fmt: skip
    assert posted(browser, "/admin/proxy/route/add/", route).is_redirect
    headers = {"content-type": "application/json", "connection": "close"}
    fine_question = raw_http.messages_body(model="sealed-fine")
    with httpx.Client(base_url=gateway.url, timeout=60, headers=headers) as client:
        ours = {"authorization": f"Bearer {SECRETS['gateway key']}"}
        theirs = {"authorization": "Bearer " + SECRETS["foreign Authorization"]}
        deadline = time.monotonic() + 90
        while client.post("/v1/messages", content=fine_question, headers=ours).status_code == 404:
            assert time.monotonic() < deadline, "the new route is not known"  # within seconds
            time.sleep(0.1)
        for source, kinds in KINDS_OF_SOURCE.items():
            for kind in kinds:
                for stream in (True, False):
                    body = raw_http.messages_body(model=f"{source}-{kind}", stream=stream)
                    keep(
                        f"{source}-{kind}", client.post("/v1/messages", content=body, headers=ours)
                    )
        fine = client.post("/v1/messages", content=fine_question, headers=ours)
        assert fine.status_code == 200, fine.text
        for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/api/v1/me/",
                     "/v1/organizations/me", "/admin/", "/nowhere", "/v1/nowhere"):  # fmt: skip
            keep(path, client.post(path, content=b"{}", headers=theirs))
            keep(path, client.get(path, headers=theirs))
            keep(path, client.get(path, headers=ours))
        both = {**ours, "x-api-key": theirs["authorization"].removeprefix("Bearer ")}
        keep("two keys", client.post("/v1/messages", content=b"{}", headers=both))
        keep("no JSON", client.post("/v1/messages", content=b"{", headers=ours))
    for status in (0, 500, 307):
        gateway.provider.status = {"/token": status} if status else {}
        with httpx.Client(base_url=gateway.url, timeout=60) as person:
            left = person.get("/sign-in/")
            keep("sign-in", left)
            keep("signed in", person.get(gateway.provider.browse(left.headers["location"])))
            afterwards = person.get("/admin/", follow_redirects=True)
            assert afterwards.url.path == ("/admin/login/" if status else "/admin/")
            keep("afterwards", afterwards)
    return found


def wrong(places: Iterable[tuple[str, bytes | str]]) -> dict[str, set[str]]:
    return {what: found for what, place in places if (found := found_in(place))}


def test_the_search_finds_each_encoding():
    for name, secret in SECRETS.items():
        raw = secret.encode()
        for encoding in (secret, f"x={quote(secret)}", raw.hex(), base64.b64encode(b"ab" + raw).decode(),
                      base64.b64encode(raw).decode(), f"…{secret[4:-4]}…"):  # fmt: skip
            assert found_in(encoding) == {name}
    assert found_in("sk-br-, bridge, admin") == set()


@pytest.mark.repeated
def test_no_response_contains_a_secret(responses):
    assert len(responses) > repeat(fast=60, slow=80)
    assert wrong(responses) == {}


PAGES_OF_A_KIND = 2
"""Pages to search whose URLs differ only in ids and parameters."""


@pytest.mark.slow
def test_no_page_contains_a_secret(responses, browser):
    """Search every page that a superuser reaches by links, and some that do not exist.

    In the fast lane, ``test_canaries`` of the threats reads a list of pages.
    """
    seen: dict[str, bytes] = {}
    waiting = deque(["/admin/", "/admin/nowhere/", "/api/v1/schema/", "/api/v1/docs/", "/readyz",
                     "/metrics", "/healthz", "/", "/api/v1/upstreams/", "/api/v1/keys/",
                     "/api/v1/budgets/", "/api/v1/me/",
                     "/api/v1/requests/?from=2026-01-01&to=2036-01-01"])  # fmt: skip
    kinds: dict[str, int] = {}
    while waiting and len(seen) < 120:
        page = waiting.popleft()
        kind = re.sub(r"req_\w+|\d+", "#", page.partition("?")[0])
        kinds[kind] = kinds.get(kind, 0) + 1
        if page in seen or kinds[kind] > PAGES_OF_A_KIND:
            continue
        reply = browser.get(page, follow_redirects=True)
        seen[page] = f"{reply.headers!r}".encode() + reply.content
        links = re.findall(r'(?:href|src)="([^"#]+)"', reply.text)
        waiting.extend(
            link.replace("&amp;", "&")
            for link in links
            if link.startswith("/") and "logout" not in link and "/static/" not in link
        )

    assert len(seen) > 40
    assert any("exchange/req_" in page for page in seen)
    assert any("/upstream/" in page and "change" in page for page in seen)
    assert wrong(seen.items()) == {}


@pytest.mark.slow  # in the fast lane, ``test_canaries`` of the threats runs most of them
@pytest.mark.parametrize(
    "command",
    [("exportconfig",), ("exportledger", "--open"), ("dumpdata",), ("doctor",),
     ("check", "--deploy")],
    ids=lambda command: command[0],
)  # fmt: skip
def test_no_command_prints_a_secret(responses, world, command):
    gateway, _ = world
    printed = run_any(gateway, *command)

    assert printed or command[0] == "check"  # prints nothing without findings
    assert found_in(printed) == set()


def run_any(gateway: Gateway, *command: str) -> str:
    """Run a command and return its output, also when it fails."""
    try:
        return gateway.manage(*command)
    except AssertionError as ended:
        return str(ended)


def test_the_database_contains_no_plain_secret(responses, world):
    """Search every value of every row; decompress the compressed ones."""
    _, server = world
    count, places = 0, []
    with contextlib.closing(psycopg.connect(server.url)) as link:
        names = link.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        ).fetchall()
        for (table,) in names:
            for row in link.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))):
                for value in row:
                    count += 1
                    raw = (
                        bytes(value)
                        if isinstance(value, bytes | memoryview)
                        else str(value).encode()
                    )
                    places.append((table, raw))
                    if raw[:4] == b"\x28\xb5\x2f\xfd":
                        places.append((f"{table}, unpacked", part_codec.decompress(raw)))

    assert count > 2_000
    assert sum("unpacked" in table for table, _ in places) > 10
    assert wrong(places) == {}


def test_the_debug_log_contains_no_secret(responses, world):
    gateway, _ = world

    assert " DEBUG " in gateway.log
    lines = [(line[:120], unquote(line)) for line in gateway.log.splitlines() if found_in(line)]
    assert lines == []


def test_the_data_files_contain_no_secret(responses, world):
    """This test is the last: it stops the gateway, which writes its memory to the disk."""
    gateway, _ = world
    gateway.stop()
    files = [path for path in Path(gateway.folder, "data").rglob("*") if path.is_file()]

    assert any(path.suffix == ".segment" for path in files)
    assert wrong((path.name, path.read_bytes()) for path in files) == {}
