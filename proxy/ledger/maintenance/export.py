"""Export ledger rows in the format of the "Request row" of the reports API, plus ``outcome``.

Money is a decimal string of dollars, times are ISO 8601 in UTC, unknown values are null, never
zero.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from django.db.models import QuerySet

from proxy.ledger.transcripts.visible_text import escape_invisible_json, show_invisible
from proxy.ledger.usage.pricing import Cost, cost_of, failed_attempts_cost
from proxy.models import Exchange, State
from proxy.money import usd
from proxy.times import rfc3339

from .reprice import usage_of

CLAUDE_CODE: Final = re.compile(r"claude-cli/\S* \(external, ([\w-]+)")
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would evaluate the cell
# An empty text is exported as null.
TEXT_COLUMNS: Final = (
    "agent_id",
    "parent_agent_id",
    "session_id",
    "api_version",
    "endpoint",
    "model_requested",
    "model_upstream",
    "upstream_request_id",
    "stop_reason",
    "detail",
    "service_tier",
    "speed",
    "inference_geo",
    "traceparent",
    "previous_id",
    "preview",
    "prompt",
)
OTHER_COLUMNS: Final = (
    "betas",
    "stream",
    "status",
    "input_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "output_tokens",
    "reasoning_tokens",
    "iterations",
    "input_source",
    "output_source",
    "cache_read_source",
    "cache_write_source",
    "reasoning_source",
    "ttft_ms",
    "total_ms",
    "upstream_ms",
    "overhead_ms",
    "queue_ms",
    "request_bytes",
    "response_bytes",
    "tool_calls",
    "tool_names",
    "has_images",
    "has_thinking",
    "message_count",
    "new_from",
    "tags",
    "ip",
    "user_agent",
    "notes",
    "unknown_events",
    "upstream_status",
    "delivered",
    "state",
)


def request_row(row: Exchange) -> dict[str, Any]:
    """Return the exported fields of one ledger row."""
    price = row.price or {}
    cost = cost_of(usage_of(row), row.price)
    return {
        "id": row.pk,
        "created_at": rfc3339(row.created),
        "finished_at": rfc3339(row.finished),
        "outcome": row.outcome or None,
        **caller_references(row.team, row.key_id, row.key_name, row.user),
        "client": {"name": row.client_name or None, "version": row.client_version or None}
        | {"app": row.tags.get("app") or _app(row.user_agent)},
        "upstream": {"id": row.upstream or None, "dialect": row.dialect or None},
        # str(): msgspec cannot encode the decrypted texts, which are of a subclass.
        **{name: str(getattr(row, name)) or None for name in TEXT_COLUMNS},
        **{name: getattr(row, name) for name in OTHER_COLUMNS},
        "error": _error(row),
        "attempts": len(row.attempts),
        "attempt_details": row.attempts,
        "retry_of": None,
        "cache_read_input_tokens": row.cache_read_tokens,
        "web_search_requests": row.web_searches,
        "usage_source": usage_source(row),
        "cost_usd": usd(row.cost_nanousd),
        "cost_parts": _parts(row, cost),
        "price_version": f"{price.get('model')}@{price.get('since')}" if price else None,
        "priced": row.cost_nanousd is not None,
        "output_tps": _tokens_per_second(row),
        "aborted_by_client": row.outcome == "client_gone",
        "redacted": False,
    }


def _parts(row: Exchange, cost: Cost | None) -> dict[str, str]:
    """Return the cost by token class, and the cost of failed attempts if there is one."""
    parts = {name: usd(nano) for name, nano in cost.parts.items()} if cost else {}
    failed = failed_attempts_cost(row.attempts)
    return {**parts, "failed_attempts": usd(failed)} if failed else parts


def _app(user_agent: str) -> str | None:
    """Return the Claude Code application: ``cli`` of ``claude-cli/2.1.329 (external, cli)``."""
    match = CLAUDE_CODE.match(user_agent)
    return match[1] if match else None


def caller_references(team: str, key: int | None, key_name: str, user: str) -> dict[str, Any]:
    """Return ``key``, ``user`` and ``team`` as every row shows them; ``user`` is None if empty.

    The ledger has the names of users, which may be addresses, but no addresses of their own.
    """
    email = user if "@" in user else None
    return {
        "key": {"id": key_id(key), "name": key_name},
        "user": {"id": user, "email": email} if user else None,
        "team": {"id": team or None, "name": team},
    }


def key_id(pk: int | None) -> str | None:
    """Return the id that the Admin API uses for a gateway key."""
    return None if pk is None else f"apikey_{pk}"


def workspace_id(team: str) -> str:
    """Return the Admin API's workspace id for a team, made from its name, which never changes."""
    return f"wrkspc_{team}"


def account_id(user: str) -> str | None:
    """Return the id that the Admin API uses for a user."""
    return f"user_{user}" if user else None


def _error(row: Exchange) -> dict[str, Any] | None:
    if not (row.error_type or row.error_message):
        return None
    return {
        "type": row.error_type or None,
        "message": str(row.error_message) or None,
        "code": row.detail or None,
        "source": row.error_source or None,
    }


def usage_source(row: Exchange) -> str:
    """Return where the token counts of a row come from.

    ``upstream``, ``estimated``, ``partial`` (input or output tokens unknown) or ``none``.
    """
    sources = {row.input_source, row.output_source}
    if "estimated" in sources:
        return "estimated"
    if sources == {"missing"}:
        return "none"
    return "partial" if "missing" in sources else "upstream"


def _tokens_per_second(row: Exchange) -> float | None:
    """Return the output tokens per second; None without streaming, as all tokens arrive at once."""
    if not row.stream or not row.output_tokens or row.total_ms is None or row.ttft_ms is None:
        return None
    seconds = (row.total_ms - row.ttft_ms) / 1000
    return round(row.output_tokens / seconds, 2) if seconds > 0 else None


def rows_between(
    since: datetime | None, until: datetime | None, *, with_open: bool
) -> "QuerySet[Exchange]":
    """Return the rows of requests accepted from ``since`` to before ``until``, oldest first.

    ``with_open``: include requests that have not ended.
    """
    rows = Exchange.objects.order_by("pk")
    if since:
        rows = rows.filter(created__gte=since)
    if until:
        rows = rows.filter(created__lt=until)
    return rows if with_open else rows.filter(state=State.CLOSED)


def ndjson(rows: Iterable[Exchange]) -> Iterator[str]:
    """Yield one line of JSON for each row."""
    for row in rows:
        yield escape_invisible_json(msgspec.json.encode(request_row(row)).decode()) + "\n"


def as_csv(rows: Iterable[Exchange]) -> Iterator[str]:
    """Yield the lines of a CSV file, first the column names.

    Nested fields are columns with names such as ``key.id``; other lists and objects are JSON.
    """
    columns: list[str] | None = None
    for row in rows:
        flat = flattened(request_row(row))
        if columns is None:
            columns = list(flat)
            yield _line(columns)
        yield _line([flat[name] for name in columns])
    if columns is None:
        yield _line(list(flattened(request_row(Exchange(created=datetime.now(UTC))))))


NESTED: Final = {
    "key": ("id", "name"),
    "user": ("id", "email"),
    "team": ("id", "name"),
    "client": ("name", "version", "app"),
    "upstream": ("id", "dialect"),
    "error": ("type", "message", "code", "source"),
}


def flattened(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``request_row`` as CSV columns."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if name in NESTED:
            flat |= {f"{name}.{key}": (value or {}).get(key) for key in NESTED[name]}
        elif isinstance(value, dict | list):
            flat[name] = msgspec.json.encode(value).decode()
        else:
            flat[name] = value
    return flat


def _line(cells: list[Any]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow([safe_cell(cell) for cell in cells])
    return out.getvalue()


def safe_cell(cell: Any) -> Any:
    """Return the cell; a text that a spreadsheet would run as a formula gets an apostrophe."""
    if not isinstance(cell, str):
        return cell
    is_formula = cell.lstrip(" \n\x00\ufeff").startswith(FORMULA_STARTS)
    text = show_invisible(cell)
    return f"'{text}" if is_formula else text
