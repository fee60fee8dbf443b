"""One ledger row as JSON: the "Request row" of the reports API and of exports.

Money is a decimal string of dollars, times are RFC 3339 in UTC, unknown values are null, never
zero.
"""

import re
from datetime import datetime
from typing import Any, Final

from django.db.models import QuerySet

from proxy.ledger.usage.pricing import cost_of, failed_attempts_cost
from proxy.models import CallerNames, Exchange, State
from proxy.money import usd
from proxy.times import rfc3339

from .amendments import usage_of

CLAUDE_CODE: Final = re.compile(r"claude-cli/\S* \(external, ([\w-]+)")
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
    "notes",
    "unknown_events",
    "upstream_status",
    "delivered",
    "state",
)

TOKEN_SOURCES: Final = ("input", "output", "cache_read", "cache_write", "reasoning")


def request_row(row: Exchange) -> dict[str, Any]:
    """Return every recorded field of a request; also the first and last words of its prompt."""
    price = row.price or {}
    claude_code = CLAUDE_CODE.match(row.user_agent)  # "claude-cli/2.1.329 (external, cli)"
    failed = failed_attempts_cost(row.attempts)
    error = {
        "type": row.error_type or None,
        "message": str(row.error_message) or None,
        "code": row.detail or None,
        "source": row.error_source or None,
    }
    cost = cost_of(usage_of(row), row.price)
    return {
        "id": row.pk,
        "created_at": rfc3339(row.created, "milliseconds"),
        "finished_at": rfc3339(row.finished, "milliseconds"),
        "outcome": row.outcome or None,
        **caller_references(row.names, row.key_id),
        "client": {"name": row.client_name or None, "version": row.client_version or None}
        | {"app": row.tags.get("app") or (claude_code[1] if claude_code else None)}
        | {"user_agent": row.user_agent or None},
        "upstream": {"id": row.upstream or None, "dialect": row.dialect or None},
        # str(): msgspec cannot encode the decrypted texts, which are of a subclass.
        **{name: str(getattr(row, name)) or None for name in TEXT_COLUMNS},
        **{name: getattr(row, name) for name in OTHER_COLUMNS},
        "error": error if row.error_type or row.error_message else None,
        "attempts": len(row.attempts),
        "attempt_details": row.attempts,
        "retry_of": None,
        "cache_read_input_tokens": row.cache_read_tokens,
        "web_search_requests": row.web_searches,
        "usage_source": usage_source(row),
        "token_sources": {name: getattr(row, f"{name}_source") for name in TOKEN_SOURCES},
        "cost_usd": usd(row.cost_nanousd),
        "cost_parts": {
            **({name: usd(nano) for name, nano in cost.parts.items()} if cost else {}),
            **({"failed_attempts": usd(failed)} if failed else {}),
        },
        "price_version": f"{price.get('model')}@{price.get('since')}" if price else None,
        "price": row.price,
        "priced": row.cost_nanousd is not None,
        "output_tps": _tokens_per_second(row),
        "aborted_by_client": row.outcome == "client_gone",
        "redacted": False,
        "previous_request_id": row.previous_id or None,
    }


def caller_references(names: CallerNames, key: int | None) -> dict[str, Any]:
    """Return ``key``, ``user`` and ``team`` as every row shows them; ``user`` is None if empty.

    The name of a user may be an e-mail address.
    """
    email = names.user if "@" in names.user else None
    return {
        "key": {"id": key_id(key), "name": names.key},
        "user": {"id": names.user, "email": email} if names.user else None,
        "team": {"id": names.team or None, "name": names.team},
    }


def key_id(pk: int | None) -> str | None:
    """Return the id that the Admin API uses for a gateway key."""
    return None if pk is None else f"apikey_{pk}"


def workspace_id(team: str) -> str:
    """Return the Admin API's workspace id for a team, made from its name."""
    return f"wrkspc_{team}"


def account_id(user: str) -> str | None:
    """Return the id that the Admin API uses for a user."""
    return f"user_{user}" if user else None


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
