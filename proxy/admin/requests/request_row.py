"""One row of the request list as text. The template escapes the values for HTML."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.urls import reverse

from proxy.admin.core.number_format import cost_of, duration, short_count
from proxy.admin.core.outcome_label import outcome_label
from proxy.admin.core.session_links import session_url
from proxy.models import Exchange, State

MAX_TOOLS: Final = 3
ERROR_CHARS: Final = 400
"""Characters of an error message that the list shows."""


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
    stop_reason: str
    tools: str
    """The tools that the answer calls."""
    error: str
    agent: str
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
    prompt: str
    """The user's last words; empty if ``preview`` has them."""


def list_row(
    row: Exchange, filter_url: Callable[[dict[str, Any]], str], *, may_read: bool
) -> RequestListRow:
    """Return one row. ``filter_url`` returns the URL of the open list with additional filters.

    If not ``may_read``, the row has no text of the conversation.
    """
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
        team=row.names.team,
        key_name=row.names.key,
        key_url=filter_url({"key_id": row.key_id}) if row.key_id is not None else "",
        client=f"{row.client_name} {row.client_version}".strip() or "unknown client",
        model=row.model_requested,
        model_url=filter_url({"model_requested": row.model_requested}),
        answered_by=" · ".join(filter(None, (row.upstream, row.model_upstream)))
        or ("…" if row.state == State.OPEN else "rejected"),
        stop_reason=row.stop_reason,
        tools=_tools(row.tool_names),
        error=row.error_start[:ERROR_CHARS] or row.error_type,  # type: ignore[attr-defined]  # an annotation
        agent=row.agent_id,
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
        preview=row.preview if may_read else "",
        prompt=row.prompt if may_read and row.prompt != row.preview else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """The rows of one session on the page; without grouping, all rows of the page."""

    rows: list[RequestListRow]
    is_session: bool = False
    title: str = ""
    """The user's first words on the page."""

    @property
    def first(self) -> RequestListRow:
        return self.rows[0]


def group_rows(rows: Sequence[RequestListRow], *, by_session: bool) -> list[RowGroup]:
    """Return the rows in groups: one of all rows, or one for each session, the newest first.

    A request without a session is a group of its own.
    """
    if not by_session:
        return [RowGroup(rows=list(rows))] if rows else []
    groups: dict[str, list[RequestListRow]] = {}
    for row in rows:
        groups.setdefault(row.session or row.pk, []).append(row)
    return [
        RowGroup(rows=group, is_session=bool(group[0].session), title=_title(group))
        for group in groups.values()
    ]


def _title(newest_first: Sequence[RequestListRow]) -> str:
    words = (row.prompt or row.preview for row in reversed(newest_first))
    return next(filter(None, words), "")


def _tools(names: Any) -> str:
    """Return the names of the called tools, each once, with the number of its calls."""
    counts = Counter(map(str, names if isinstance(names, list) else ()))
    shown = [name if count == 1 else f"{name} ({count})" for name, count in counts.items()]
    more = [f"and {len(shown) - MAX_TOOLS} more"] if len(shown) > MAX_TOOLS else []
    return ", ".join([*shown[:MAX_TOOLS], *more])


def _sum(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
