"""Make the data directories of this version for the upgrade test: with SQLite and with PostgreSQL.

Run it in the repository, as root: ``python -m tests.e2e.upgrade.make_release``. It needs Linux with
``unshare``, because the files contain the host's name and the path of the data directory: it runs
itself in namespaces of its own, with ``HOST`` as the host's name and ``HOME`` as the path.

A gateway serves requests, is configured, archives a month, and is killed while the database is
locked or down, so that its journal has records that are not in the database. Ids and times are new in each
run. After a release its files must never be made again: they stand for the directories of users.
"""

import contextlib
import hashlib
import json
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tests.fakes.load.filled_ledger import fill_ledger
from tests.fakes.load.outages import locked, stopped
from tests.fakes.servers.gateway import Gateway, Reply
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.upstreams.script_steps import Script, json_response
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream
from tests.waiting import until

from .releases import (
    ENGINE,
    FOLDER,
    MIGRATIONS,
    dump,
    pack,
    read_back,
    restore,
    serve,
    unpack,
)

HOST: Final = "gateway-1"
HOME: Final = Path("/var/lib/messages-bridge")
CONFIG: Final = """
[[teams]]
name = "platform"
store = "full"
retention_days = 3650
models = ["*"]
limits = { rpm = 600 }
budgets = [{ usd = "500", period = "month" }]

[[keys]]
team = "platform"
name = "ci"
scopes = ["messages", "reports", "admin"]
secret = { env = "BRIDGE_KEY_E2E" }
"""
WEATHER: Final = {
    "name": "get_weather",
    "input_schema": {
        "type": "object", "required": ["city"], "properties": {"city": {"type": "string"}},
    },
}  # fmt: skip
REQUESTS: Final = (
    {"prompt": "Where does the marmalade come from?", "stream": True},
    {"prompt": "And who eats it?"},
    {"prompt": "How is the weather?", "tools": [WEATHER], "stream": True},
    {"prompt": "Write a long text.", "max_tokens": 5},
    {"prompt": "Fail."},
)
UNPOSTED: Final = (
    {"prompt": "Only the journal knows this marmalade.", "stream": True},
    {"prompt": "Fail."},
)
HISTORY: Final = 5
"""Requests of June 2026, a month that is archived and removed from the database."""
STORED_SECRET: Final = "sk-stored-with-encryption"
OBJECTS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("upstreams", {"name": ENGINE, "dialect": "chat", "base_url": f"http://{ENGINE}/v1",
                   "api_key": STORED_SECRET}),
    ("models", {"model": "claude-opus-5", "targets": [{"upstream": ENGINE, "model": "tiny"}]}),
    ("prices", {"upstream": ENGINE, "model": "tiny", "since": "2026-01-01",
                "input": "1.25", "output": "10"}),
    ("webhooks", {"name": "ops", "url": "https://hooks.example/ops", "events": ["budget.exhausted"]}),
    ("keys", {"team": "platform", "name": "revoked", "scopes": ["messages"]}),
    ("reports", {"name": "by-model", "report": "usage", "team": "platform",
                 "query": {"group_by": ["model"]}}),
    ("pauses", {"model": "nothing-*", "message": "Use another model."}),
)  # fmt: skip
WEATHER_CALL: Final = {
    "id": "call_1", "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
}  # fmt: skip


def answer(request: ReceivedRequest) -> Script:
    """Answer as a server with the Chat Completions API does; the prompt selects the answer."""
    body = request.json
    if body["messages"][-1]["content"] == "Fail.":
        return json_response({"error": {"message": "this request was to fail"}}, 400)
    message: dict[str, Any] = {"role": "assistant", "content": "From Dundee, and from Seville."}
    finish = "stop"
    if body.get("tools"):
        message, finish = message | {"tool_calls": [WEATHER_CALL]}, "tool_calls"
    elif 5 in body.values():
        finish = "length"
    choice = {"index": 0, "finish_reason": finish, "message": message}
    usage = {"prompt_tokens": 700, "completion_tokens": 20}
    return json_response({"id": "c", "model": "tiny", "usage": usage, "choices": [choice]})


def post(gateway: Gateway, session: int, prompt: str, **fields: Any) -> Reply:
    body = {
        "model": "claude-opus-5", "max_tokens": 200,
        "messages": [{"role": "user", "content": prompt}], **fields,
    }  # fmt: skip
    headers = {
        "content-type": "application/json",
        "x-claude-code-session-id": f"session-{session}",
        "user-agent": "upgrade-test/1",
    }
    return gateway.request("POST", "/v1/messages", json.dumps(body).encode(), headers)


def send_all(gateway: Gateway, requests: Iterable[dict[str, Any]]) -> list[str]:
    """Send the requests in two sessions; return their ids."""
    replies = [post(gateway, number % 2, **one) for number, one in enumerate(requests)]
    return [reply.headers["request-id"] for reply in replies]


def write(gateway: Gateway, method: str, path: str, body: dict[str, Any]) -> Any:
    headers = {"content-type": "application/json"}
    reply = gateway.request(method, f"/api/v1/{path}", json.dumps(body).encode(), headers)
    assert reply.status < 300, (path, reply.body)
    return json.loads(reply.body or b"null")


def wait_for_backlog(gateway: Gateway, records: int) -> None:
    """Wait until the journal has so many durable records that the database does not have."""
    deadline = time.monotonic() + 60
    while (ready := json.loads(gateway.request("GET", "/readyz").body))["backlog"] < records:
        assert time.monotonic() < deadline, ready
        time.sleep(0.05)


def fill(folder: Path, proxy: ScriptedUpstream, postgres: Postgres | None = None) -> dict[str, Any]:
    """Fill ``folder/data`` and kill the gateway; return the key, the end and the unposted ids."""
    with serve(folder, proxy, postgres, config=CONFIG) as gateway:
        key = gateway.manage(
            "createkey", "--team", "platform", "--name", "old", "--user", "admin", "--json",
            "--scope", "messages", "--scope", "reports", "--scope", "admin",
        )  # fmt: skip
        gateway.key = json.loads(key)["key"]
        made = {path: write(gateway, "POST", f"{path}/", body) for path, body in OBJECTS}
        write(gateway, "DELETE", f"keys/{made['keys']['id']}/", {})
    data = folder / "data"
    environment = {"BRIDGE_DATA_DIR": str(data)} | (
        {"DATABASE_URL": postgres.url} if postgres else {}
    )
    fill_ledger(HISTORY, environment, days_before=160)
    gateway.manage("pruneledger")
    gateway.manage("archivemonths", "--before", "2026-07", "--remove")
    gateway.config = None
    with gateway:
        gateway.closed_rows(*send_all(gateway, REQUESTS))
        with stopped(postgres) if postgres else locked(data / "ledger.sqlite3"):
            unposted = send_all(gateway, UNPOSTED)
            wait_for_backlog(gateway, 2 * len(UNPOSTED))
            gateway.process.kill()
            gateway.process.wait()
    end = (datetime.now(UTC) + timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"key": gateway.key, "until": end, "unposted": unposted}


def run_in_namespaces() -> None:
    """Run this module with ``HOST`` as the host's name and an empty directory above ``HOME``."""
    script = f"hostname {HOST} && mount -t tmpfs tmpfs {HOME.parent}"
    subprocess.run(  # noqa: S603 - our own command line
        [  # noqa: S607 - programs of the system
            "unshare", "--uts", "--mount", "sh", "-c",
            f'{script} && exec "$0" -m tests.e2e.upgrade.make_release', sys.executable,
        ],
        check=True,
    )  # fmt: skip


def write_release(release: str, facts: dict[str, Any], said: dict[str, Any]) -> None:
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(MIGRATIONS.glob("0*.py"))
    }
    text = json.dumps({**facts, "said": said, "migrations": digests}, indent=1, ensure_ascii=False)
    (FOLDER / f"{release}.json").write_text(text + "\n", encoding="utf-8")


def make(release: str, proxy: ScriptedUpstream, *servers: Postgres) -> None:
    """Write an archive of this version, and the file with what it says about its records.

    ``servers``: two empty PostgreSQL servers, the second for the copy; none: SQLite.
    """
    original, second = servers or (None, None)
    facts = fill(HOME, proxy, original)
    if original is not None:
        dump(original, HOME / "data")
    pack(HOME / "data", FOLDER / f"{release}.tar.xz")
    copy = HOME.with_name("copy")
    unpack(release, copy / "data")
    if second is not None:
        restore(second, copy / "data")
    with serve(copy, proxy, second, key=facts["key"]) as gateway:
        gateway.closed_rows(*facts["unposted"])
        # Reading adds entries to the audit log, which must be later than the period.
        until(lambda: datetime.now(UTC) >= datetime.fromisoformat(facts["until"]))
        said = read_back(gateway, facts["until"])
    write_release(release, facts, said)
    for folder in (HOME, copy):
        shutil.rmtree(folder)


def make_all() -> None:
    pyproject = tomllib.loads((MIGRATIONS.parents[1] / "pyproject.toml").read_text("utf-8"))
    version = pyproject["project"]["version"]
    FOLDER.mkdir(exist_ok=True)
    with ScriptedUpstream() as proxy, contextlib.ExitStack() as resources:
        proxy.choose(answer)
        make(f"{version}-sqlite", proxy)
        servers = [resources.enter_context(Postgres(migrated=False)) for _ in range(2)]
        make(f"{version}-postgresql", proxy, *servers)


if __name__ == "__main__":
    if socket.gethostname() == HOST:
        make_all()
    else:
        run_in_namespaces()
