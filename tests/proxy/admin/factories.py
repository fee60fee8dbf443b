"""Users, keys and rows of a small ledger, written from request records as the gateway does.

Ada leads the team ``platform``, Ben is a member of it, Cleo's team is ``research``.
"""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from ulid import ULID

from proxy.ledger.journal.records import Chunk, CloseRecord, OpenRecord
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.models import ActorKind, ApiKey, AuditEntry, Exchange, Person, Price, Team
from proxy.models.ledger_names import person_ids, team_ids

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
TARGET = {
    "upstream": "openai",
    "model": "gpt-5.2",
    "dialect": "responses",
    "profile": "openai",
    "capabilities": {},
}


def request_body(**changes: Any) -> dict[str, Any]:
    return {
        "model": "claude-opus-5-5",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": "Which files are here?"}],
    } | changes


def answer_body(*content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": list(content) or [{"type": "text", "text": "Two: a note and a map."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    } | changes


def exchange_records(
    *,
    at: datetime = NOON,
    team: str = "platform",
    key: ApiKey | None = None,
    body: dict[str, Any] | None = None,
    answer: dict[str, Any] | None = None,
    closed: bool = True,
    reads: tuple[tuple[float, bytes], ...] = (),
    failed: tuple[tuple[int, bytes], ...] = (),
    opening: dict[str, Any] | None = None,
    closing: dict[str, Any] | None = None,
    with_content: bool = True,
) -> ExchangeRecords:
    """Return the records of one request, by default ten seconds long.

    ``failed``: status and body of each failed attempt, before the attempt of ``reads``.
    """
    body = body if body is not None else request_body()
    opened = {
        "id": f"req_{ULID.from_datetime(at)}",
        "created": at.timestamp(),
        "worker": "w1",
        "team": team,
        "key_id": key.pk if key else None,
        "key_name": "" if key else "ci",
        "user": "",
        "model_requested": str(body.get("model", "")),
        "model_upstream": "gpt-5.2",
        "upstream": "openai",
        "dialect": "responses",
        "stream": True,
        "client_name": "claude-cli",
        "client_version": "2.1.329",
        "body": json.dumps(body).encode() if with_content else None,
    } | (opening or {})
    opened |= {"team": ledger_id(team_ids, opened["team"])}
    opened |= {"user": ledger_id(person_ids, opened["user"])}
    chunks = [
        Chunk(id=opened["id"], reads=[(1.0, raw)], attempt=n, target=TARGET, status=status)
        for n, (status, raw) in enumerate(failed)
    ]
    if reads:
        chunks.append(Chunk(id=opened["id"], reads=list(reads), attempt=len(failed)))
    ended = {
        "id": opened["id"],
        "finished": at.timestamp() + 10,
        "outcome": "completed",
        "status": 200,
        "stop_reason": "end_turn",
        "ttft_ms": 900.0,
        "total_ms": 10_000.0,
        "model_upstream": "gpt-5.2",
        "upstream": "openai",
        "dialect": "responses",
        "usage": {
            "input": 100,
            "output": 50,
            "cache_read": 1000,
            "cache_write_5m": 0,
            "reasoning": 20,
            "source": "reported",
        },
        "answer": (answer if answer is not None else answer_body()) if with_content else None,
        "target": TARGET,
    } | (closing or {})
    return ExchangeRecords(OpenRecord(**opened), chunks, CloseRecord(**ended) if closed else None)


def ledger_id(ids: Callable[[str], list[str]], name: str) -> str:
    """Return the id of a team or user of this name; without one, the name is the id."""
    return next(iter(ids(name)), name) if name else ""


def record(**fields: Any) -> Exchange:
    """Write one request to the ledger; ``fields`` as for exchange_records."""
    records = exchange_records(**fields)
    write_to_database([records])
    return Exchange.objects.get(pk=records.opening.id)


def team(name: str = "platform", **fields: Any) -> Team:
    """Return the team of this name; if requests have the name as an id, it is the team's."""
    if Exchange.objects.filter(team=name).exists():
        fields = {"ledger_id": name, **fields}
    return Team.objects.get_or_create(name=name, defaults=fields)[0]


def key(name: str = "ci", of: str = "platform", **fields: Any) -> tuple[ApiKey, str]:
    return ApiKey.issue(team(of), name, **fields)


def price() -> Price:
    return Price.objects.create(
        model="gpt-5.2",
        since=date(2026, 1, 1),
        input=Decimal("1.25"),
        output=Decimal(10),
        cache_read=Decimal("0.125"),
    )


def superuser() -> User:
    return User.objects.create_superuser("root", "root@example.com", None)


def staff(
    name: str,
    *permissions: str,
    groups: tuple[str, ...] = (),
    teams: tuple[str, ...] = ("*",),
) -> User:
    """Create a user of the admin; if requests have the name as an id, it is the user's.

    ``teams``: the teams in which the permissions, or those of owner and auditor, count; without
    effect if ``groups`` name a team.
    """
    user = User.objects.create_user(name, f"{name}@example.com", None, is_staff=True)
    if Exchange.objects.filter(user=name).exists():
        user.person.delete()
        user.person = Person.objects.create(pk=name, user=user)
    for group in groups:
        if group.startswith("team:") and group != "team:*":
            team(group.removeprefix("team:"))
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    needs_team = bool(permissions) or not {"owner", "auditor"}.isdisjoint(groups)
    if needs_team and not any(group.startswith("team:") for group in groups):
        groups = (*groups, *(f"team:{team}" for team in teams))
    user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    return user


def ada() -> User:
    """Return the lead of platform, who may see its requests and transcripts."""
    return staff("ada", "view_exchange", "view_transcript", "view_part", groups=("team:platform",))


REQUEST_BODY = request_body(
    system=[
        {"type": "text", "text": "You are a careful engineer. Prefer small steps.\n" * 12},
        {"type": "text", "text": "Project: cartography.", "cache_control": {"type": "ephemeral"}},
    ],
    tools=[
        {"name": "Bash", "description": "Run a command", "input_schema": {"type": "object"}},
        {"name": "Read", "description": "Read a file", "input_schema": {"type": "object"}},
    ],
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is Friday.\n</system-reminder>"},
                {
                    "type": "text",
                    "text": "The tests of the tile cache fail since yesterday. Can you find out why, "
                    "and fix it?\n\nThe log is in build/test.log.",
                },
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {
                    "type": "thinking",
                    "thinking": "The log first; then the change that broke it. I should not guess.",
                    "signature": "brg1.k.p.m",
                },
                {"type": "text", "text": "I will read the log first."},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "Read",
                    "input": {"file_path": "build/test.log", "limit": 40},
                },
                {
                    "type": "tool_use",
                    "id": "toolu_2",
                    "name": "Bash",
                    "input": {"command": "git log --oneline -5 -- tiles/", "timeout": 5000},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": "FAILED tests/test_cache.py::test_evicts\n  assert cache.size == 3\n"
                    "  AssertionError: 4 == 3",
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "fatal: not a git repository"}],
                },
                {
                    "type": "text",
                    "text": "There is no git here, look at tiles/cache.py instead.",
                    "cache_control": {"type": "ephemeral"},
                },
            ],
        },
    ],
)
ANSWER = answer_body(
    {"type": "thinking", "thinking": "Off by one in evict().", "signature": "brg1.k.p.m"},
    {
        "type": "text",
        "text": "The cache evicts one entry too late: `evict()` compares with `>` where the limit "
        "is inclusive. I will check the file before I change it.",
    },
    {
        "type": "tool_use",
        "id": "toolu_3",
        "name": "Bash",
        "input": {"command": "sed -n '1,60p' tiles/cache.py", "description": "Show the cache"},
    },
    stop_reason="tool_use",
)


def page(client: Client, exchange: Exchange, query: str = "") -> Any:
    """Return the response of a request's page."""
    return client.get(f"/admin/proxy/exchange/{exchange.pk}/change/{query}")


def audit(**where: Any) -> list[AuditEntry]:
    """Return the audit entries, oldest first, without those on rows that the test itself wrote."""
    ids = {"team": team_ids, "user": person_ids, "subject": person_ids}
    where = {
        name: ledger_id(ids[name], value) if name in ids else value for name, value in where.items()
    }
    entries = AuditEntry.objects.filter(**where).exclude(actor_kind=ActorKind.SYSTEM)
    return list(entries.order_by("pk"))
