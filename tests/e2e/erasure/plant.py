"""Plant the unusual strings of one person in every place of a gateway, and find what is left."""

import contextlib
import json
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import duckdb
import zstandard

from proxy.ledger.journal import segments
from proxy.ledger.transcripts import part_codec
from tests.fakes.servers.gateway import Gateway, Reply
from tests.fakes.upstreams import script_steps
from tests.fakes.upstreams.upstream import ReceivedRequest, ScriptedUpstream

MARK = "zyxquokka"
"""Every string of the person contains this word, which occurs nowhere else."""
NAME = f"ada.{MARK}"
OTHER = "ben.vwnarwhal"
KEYS = {NAME: "sk-br-" + "ada0" * 12, OTHER: "sk-br-" + "ben0" * 12}
MODEL = "chat-erasure"
ENDLESS = 51
"""The ``max_tokens`` of a request that the upstream does not answer."""
ROUTES = f"""
[[routes]]
model = "{MODEL}"
targets = [{{ upstream = "chat" }}]
"""

SETUP = f"""
from datetime import datetime, timedelta, UTC
from django.contrib.admin.models import LogEntry, ADDITION
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from proxy.models import *
from proxy.models.setup.keys import secret_columns
from proxy.audit_log import record
from tests.proxy.admin import factories

this_month = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
User.objects.create_superuser("root")
for model in ("gpt-5.2", "{MODEL}"):
    Price.objects.get_or_create(upstream=None, model=model, since=datetime(2026, 1, 1).date(),
        defaults={{"input": 3, "output": 15}})
team = Team.objects.get(name="e2e")
keys = {{}}
for name, secret, mark in {[(name, secret, name.partition(".")[2]) for name, secret in KEYS.items()]!r}:
    user = User.objects.create(username=name, email=f"{{mark}}-mail@example.com",
        first_name=f"First{{mark}}", last_name=f"Last{{mark}}")
    keys[name] = ApiKey.objects.create(team=team, user=user, name=f"{{mark}}-laptop",
        scopes=["messages", "admin"], **secret_columns(secret))
    Budget.objects.create(user=user, usd=1000)
    Budget.objects.create(team=team, usd=1000, emails=[user.email, "ops@example.com"])
    Budget.objects.create(key=keys[name], usd=1000)
    SavedView.objects.create(user=user, name=f"{{mark}}-view", query="q=1")
    SavedReport.objects.create(name=f"all-{{mark[:2]}}", report="usage", team=team,
        query={{"user": [name]}})
    Purge.objects.create(username=name, state="done", created=datetime.now(UTC),
        seen=datetime.now(UTC))
    Identity.objects.create(user=user, issuer="https://id.example", subject=f"{{mark}}-subject")
    LogEntry.objects.create(user=User.objects.get(username="root"), object_repr=name,
        content_type=ContentType.objects.get_for_model(User), object_id=str(user.pk),
        action_flag=ADDITION)
    record("read", detail=f"the conversation of {{name}} and {{user.email}}", subject=name,
        reason=f"First{{mark}} Last{{mark}} has asked for it")
    for number in range(4):
        factories.record(
            at=this_month - timedelta(hours=number + 1), team="e2e",
            key=keys[name], with_content=False,
            opening={{"user": name, "session_id": f"{{mark}}-old", "ip": "203.0.113.77",
                "tags": {{"who": f"{{mark}}-tag"}}, "user_agent": f"{{mark}}-agent/1"}},
            closing={{"error_message": f"{{mark}}-error", "outcome": "upstream_error",
                "attempts": [{{"ms": 1, "error": f"{{mark}}-attempt"}}]}},
        )
"""

TOTALS = """
import io, json
from collections import Counter
from django.core.management import call_command
from django.db.models import Sum
from proxy.ledger.posting.rollups import COUNTS, TABLES
from proxy.models import Exchange, SessionOutcomeDay, StopReasonDay
totals, verified, exported = {}, io.StringIO(), io.StringIO()
call_command("verifyledger", stdout=verified)
assert "everything is as it was written" in verified.getvalue(), verified.getvalue()
for table in TABLES:
    rows = table.objects.values("team", "start") if table.__name__ != "UsageByModelQuarterHour" \
        and table.__name__ != "UsageByModelDay" else table.objects.values("start")
    for row in rows.annotate(**{f"sum_{n}": Sum(n) for n in COUNTS}).order_by(*rows.query.values_select):
        totals[f"{table.__name__} {row.get('team')} {row['start']}"] = [row[f"sum_{n}"] for n in COUNTS]
totals["stop"] = StopReasonDay.objects.aggregate(Sum("requests"), Sum("requests_with_tool"))
totals["outcomes"] = SessionOutcomeDay.objects.aggregate(Sum("lines_added"), Sum("edit_accepted"))
call_command("exportledger", "--format", "ndjson", "--open", stdout=exported)
rows = [json.loads(line) for line in exported.getvalue().splitlines() if line.strip()]
totals["users"] = Counter((row["user"] or {}).get("id", "") for row in rows)
print(json.dumps(totals, default=str))
"""


def respond(request: ReceivedRequest) -> list[Any]:
    """Answer with the words of the question, so that they are in the response and its stream too."""
    if request.json["max_tokens"] == ENDLESS:
        return [script_steps.stream_head(), script_steps.Stall()]
    mark = MARK if MARK in json.dumps(request.json) else "vwnarwhal"
    events = [
        {"choices": [{"index": 0, "delta": {"content": f"answer {mark}-answer"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7}},
    ]
    lines = [b"data: %b\n\n" % json.dumps(event).encode() for event in events]
    return script_steps.stream(b"".join([*lines, b"data: [DONE]\n\n"]))


def wait_for_keys(gateway: Gateway) -> None:
    """Wait until the running gateway has read the planted keys."""
    for key in KEYS.values():
        while gateway.request("GET", "/v1/models", headers={"x-api-key": key}).status != 200:
            time.sleep(0.05)


def send(gateway: Gateway, name: str, number: int, *, max_tokens: int = 50) -> Reply:
    """Send a request with a prompt, a tool call and its result, a session and an address."""
    mark = name.partition(".")[2]
    call = {
        "type": "tool_use",
        "id": f"toolu_{mark}_{number}",
        "name": "Edit",
        "input": {
            "file_path": f"/home/{mark}-home/notes.md",
            "old_string": "a",
            "new_string": f"{mark}-edit\nsecond",
        },
    }
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"{mark}-result"}
    environment = f"<env>\nWorking directory: /home/{mark}-repo\nIs directory a git repo: Yes\n</env>\nCurrent branch: {mark}-branch"
    body = {
        "model": MODEL,
        "max_tokens": max_tokens,
        "stream": number % 2 == 0,
        "system": [{"type": "text", "text": environment}],
        "metadata": {"user_id": json.dumps({"session_id": f"{mark}-session-{number}"})},
        "messages": [
            {"role": "user", "content": f"{mark}-prompt shared words for everybody {number}"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ],
    }
    headers = {
        "x-api-key": KEYS[name],
        "content-type": "application/json",
        "user-agent": f"claude-cli/2.1.300 (external, {mark}-machine)",
        "x-claude-code-agent-id": f"{mark}-agent-id",
        "anthropic-beta": f"{mark}-beta",
    }
    return gateway.request("POST", "/v1/messages", json.dumps(body).encode(), headers)


def search(gateway: Gateway) -> None:
    """Let both persons search for words of each other."""
    for name, words in ((NAME, "vwnarwhal-prompt"), (OTHER, f"{MARK}-prompt"), (NAME, f"{MARK}'s")):
        path = f"/api/v1/search?{urlencode({'q': words})}"
        assert gateway.request("GET", path, headers={"x-api-key": KEYS[name]}).status == 200


def stop_request_of_other(gateway: Gateway) -> str:
    """Stop a running request of the other person with the person's key; return what that one received."""
    order = json.dumps({"kind": "key", "name": f"e2e/{OTHER.partition('.')[2]}-laptop"}).encode()
    headers = {"x-api-key": KEYS[NAME], "content-type": "application/json"}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(send, gateway, OTHER, 2, max_tokens=ENDLESS)
        # Several orders: one stops only the requests that already run.
        while not wait([running], timeout=0.1).done:
            assert gateway.request("POST", "/api/v1/stop/", order, headers).status == 202
        return running.result().body.decode()


def found_in(folder: Path, mark: str = MARK) -> Counter[str]:
    """Return which words with the mark each file contains, also in compressed content.

    Journals, Parquet files and blobs of databases are decompressed.
    """
    found: Counter[str] = Counter()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        for text in (path.read_bytes(), path.name.encode(), *_inner_texts(path)):
            lower = text.lower()
            if mark.encode() not in lower:  # the pattern would try each position
                continue
            for word in re.findall(rb"[\w.@-]*%b[\w.@-]*" % mark.encode(), lower):
                found[f"{path.relative_to(folder)}: {word[-40:].decode(errors='replace')}"] += 1
    return found


def _inner_texts(path: Path) -> Iterator[bytes]:
    if path.suffix == ".segment":
        with path.open("rb") as file:
            size = path.stat().st_size
            for frame in segments.read_frames(file.fileno(), segments.HEADER.size, size):
                if isinstance(frame, segments.Frame):
                    yield segments.body_of(segments.read_frame(file.fileno(), frame.offset))
    elif path.suffix == ".parquet":
        for row in duckdb.read_parquet(str(path)).fetchall():
            yield from _texts_of_row(row)
    elif path.suffix == ".sqlite3":
        yield from _texts_of_database(path)


def _texts_of_database(path: Path) -> Iterator[bytes]:
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        tables = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        for name, sql in tables.fetchall():
            if "VIRTUAL" in (sql or ""):
                continue
            for row in database.execute(f'SELECT * FROM "{name}"'):  # noqa: S608 - own schema
                yield from _texts_of_row(row)


def _texts_of_row(row: Sequence[Any]) -> Iterator[bytes]:
    yield repr(row).encode()
    for value in row:
        if isinstance(value, bytes):
            with contextlib.suppress(zstandard.ZstdError):
                yield part_codec.decompress(value)


def totals(gateway: Gateway, before: str = "") -> dict[str, Any]:
    """Verify the ledger; return all sums by team and time, and the number of requests by user.

    ``before``: code to run first.
    """
    return json.loads(gateway.manage("shell", "--verbosity", "0", "-c", before + TOTALS))


def texts_of_dump(dump: bytes) -> Iterator[bytes]:
    r"""Yield a dump of PostgreSQL as text, and its binary values (``\\x6162``) decompressed."""
    yield dump
    for found in re.finditer(rb"\\\\x([0-9a-f]{16,})", dump):
        value = bytes.fromhex(found[1].decode())
        yield value
        with contextlib.suppress(zstandard.ZstdError):
            yield part_codec.decompress(value)


def upstream_config(upstream: ScriptedUpstream) -> dict[str, dict[str, Any]]:
    return {"chat": {"dialect": "chat", "base_url": upstream.base_url}}
