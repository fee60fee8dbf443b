"""One row of the request list as text. The template escapes the values for HTML."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from proxy.admin.core.number_format import cost_of, duration, short_count
from proxy.admin.core.outcome_label import outcome_label
from proxy.admin.core.session_links import session_url
from proxy.models import Exchange, State


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestListRow:
    pk: str
    url: str
    created: Any
    tone: str
    outcome_text: str
    status: int | None
    team: str
    key_name: str
    key_url: str
    client: str
    model: str
    model_url: str
    answered_by: str
    stop: str
    tokens: str
    tokens_exact: str
    cost: str
    is_open: bool
    first: str
    total: str
    session: str
    session_short: str
    session_url: str
    preview: str


def list_row(row: Exchange, filter_url: Callable[[dict[str, Any]], str]) -> RequestListRow:
    """Return one row. ``filter_url`` returns the URL of the open list with additional filters."""
    tone, outcome_text = outcome_label(row)
    counts = (
        _sum(row.input_tokens, row.cache_write_5m_tokens, row.cache_write_1h_tokens),
        row.cache_read_tokens,
        row.output_tokens,
    )
    long = len(row.session_id) > 9
    return RequestListRow(
        pk=row.pk,
        url=reverse("admin:proxy_exchange_change", args=[row.pk]),
        created=row.created,
        tone=tone,
        outcome_text=outcome_text,
        status=row.status,
        team=row.team,
        key_name=row.key_name,
        key_url=filter_url({"key_id": row.key_id}) if row.key_id is not None else "",
        client=f"{row.client_name} {row.client_version}".strip() or "unknown client",
        model=row.model_requested,
        model_url=filter_url({"model_requested": row.model_requested}),
        answered_by=" · ".join(filter(None, (row.upstream, row.model_upstream)))
        or ("…" if row.state == State.OPEN else "rejected"),
        stop=(row.stop_reason or row.error_type).replace("_", " ") or "—",
        tokens=" / ".join(short_count(count) for count in counts),
        tokens_exact="input {}, cached {}, output {}".format(
            *("unknown" if count is None else f"{count:,}" for count in counts)
        ),
        cost=cost_of(row),
        is_open=row.state == State.OPEN,
        first=duration(row.ttft_ms),
        total=duration(row.total_ms),
        session=row.session_id,
        session_short=f"{row.session_id[:8]}…" if long else row.session_id,
        session_url=session_url(row.session_id) if row.session_id else "",
        preview=row.preview,
    )


def _sum(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
