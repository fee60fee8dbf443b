"""One row of the ledger as outsiders see it: the "Request row" of the reports, plus ``outcome``.

Money is a decimal string of dollars, times are ISO 8601 in UTC, unknown is null and never zero.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
from django.db.models import QuerySet

from proxy.models import Exchange, State

from .pricing import Cost, cost_of, lost_in
from .repricing import usage_of

FACE: Final = re.compile(r"claude-cli/\S* \(external, ([\w-]+)")
RISKY: Final = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a cell that begins so
SAME: Final = (
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
    "traceparent",
    "previous_id",
    "preview",
)  # text; blank is written as null
KEPT: Final = (
    "betas",
    "stream",
    "status",
    "input_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "output_tokens",
    "reasoning_tokens",
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
    """The fields of one request."""
    price = row.price or {}
    cost = cost_of(usage_of(row), row.price)
    return {
        "id": row.pk,
        "created_at": iso(row.created),
        "finished_at": iso(row.finished),
        "outcome": row.outcome or None,
        "key": {"id": key_id(row.key_id), "name": row.key_name},
        "user": {"id": account_id(row.user), "email": row.user if "@" in row.user else None}
        if row.user
        else None,
        "team": {"id": workspace_id(row.team) if row.team else None, "name": row.team},
        "client": {"name": row.client_name or None, "version": row.client_version or None}
        | {"app": row.tags.get("app") or _app(row.user_agent)},
        "upstream": {"id": row.upstream or None, "dialect": row.dialect or None},
        **{name: getattr(row, name) or None for name in SAME},
        **{name: getattr(row, name) for name in KEPT},
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


def _parts(row: Exchange, cost: Cost | None) -> dict[str, str | None]:
    """The cost by class of tokens, and that of failed attempts where a hard budget counts them."""
    parts = {name: usd(nano) for name, nano in cost.parts.items()} if cost else {}
    lost = lost_in(row.attempts)
    return {**parts, "failed_attempts": usd(lost)} if lost else parts


def _app(user_agent: str) -> str | None:
    """Which face of Claude Code: ``cli`` of ``claude-cli/2.1.329 (external, cli)``."""
    found = FACE.match(user_agent)
    return found[1] if found else None


def key_id(pk: int | None) -> str | None:
    """A key's name on Anthropic's wire."""
    return None if pk is None else f"apikey_{pk}"


def workspace_id(team: str) -> str:
    """A team's name on Anthropic's wire: the name itself is the stable part."""
    return f"wrkspc_{team}"


def account_id(user: str) -> str | None:
    """A person's name on Anthropic's wire."""
    return f"user_{user}" if user else None


def _error(row: Exchange) -> dict[str, Any] | None:
    if not (row.error_type or row.error_message):
        return None
    return {
        "type": row.error_type or None,
        "message": row.error_message or None,
        "code": row.detail or None,
        "source": row.error_source or None,
    }


def usage_source(row: Exchange) -> str:
    """``upstream``, ``estimated``, ``partial`` (one of the two was not told) or ``none``."""
    sources = {row.input_source, row.output_source}
    if "estimated" in sources:
        return "estimated"
    if sources == {"missing"}:
        return "none"
    return "partial" if "missing" in sources else "upstream"


def _tokens_per_second(row: Exchange) -> float | None:
    """None for an answer that did not stream: all of it arrives at once, however long it took."""
    if not row.stream or not row.output_tokens or row.total_ms is None or row.ttft_ms is None:
        return None
    seconds = (row.total_ms - row.ttft_ms) / 1000
    return round(row.output_tokens / seconds, 2) if seconds > 0 else None


def usd(nano: int | None) -> str | None:
    """Dollars as a plain decimal string, exact, at least six places."""
    if nano is None:
        return None
    text = format(Decimal(nano).scaleb(-9), ".9f")
    return text[:-3] + text[-3:].rstrip("0")


def iso(at: datetime | None) -> str | None:
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rows_between(
    since: datetime | None, until: datetime | None, *, with_open: bool
) -> "QuerySet[Exchange]":
    """Rows accepted in the half-open range, oldest first."""
    rows = Exchange.objects.order_by("pk")
    if since:
        rows = rows.filter(created__gte=since)
    if until:
        rows = rows.filter(created__lt=until)
    return rows if with_open else rows.filter(state=State.CLOSED)


def ndjson(rows: "QuerySet[Exchange]") -> Iterator[str]:
    for row in rows.iterator(chunk_size=1000):
        yield msgspec.json.encode(request_row(row)).decode() + "\n"


def as_csv(rows: "QuerySet[Exchange]") -> Iterator[str]:
    """Nested fields become ``key.id``; lists and free objects are JSON."""
    columns: list[str] | None = None
    for row in rows.iterator(chunk_size=1000):
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
    csv.writer(out).writerow([_safe(cell) for cell in cells])
    return out.getvalue()


def _safe(cell: Any) -> Any:
    risky = isinstance(cell, str) and cell.lstrip(" \n\x00\ufeff").startswith(RISKY)
    return f"'{cell}" if risky else cell
