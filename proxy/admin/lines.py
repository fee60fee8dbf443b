"""One row of the request list as words. Values only: the template escapes them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import NoReverseMatch, reverse

from proxy.models import Exchange, State

from .figures import cost_of, duration, short_count
from .summary import tone_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    pk: str
    url: str
    created: Any
    tone: str
    word: str
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


def line_of(row: Exchange, narrowed: Callable[[dict[str, Any]], str]) -> Line:
    """``narrowed`` makes the address of this list with one more filter."""
    tone, word = tone_of(row)
    counts = (
        _sum(row.input_tokens, row.cache_write_5m_tokens, row.cache_write_1h_tokens),
        row.cache_read_tokens,
        row.output_tokens,
    )
    long = len(row.session_id) > 9
    return Line(
        pk=row.pk,
        url=reverse("admin:proxy_exchange_change", args=[row.pk]),
        created=row.created,
        tone=tone,
        word=word,
        status=row.status,
        team=row.team,
        key_name=row.key_name,
        key_url=narrowed({"key_id": row.key_id}) if row.key_id is not None else "",
        client=f"{row.client_name} {row.client_version}".strip() or "unknown client",
        model=row.model_requested,
        model_url=narrowed({"model_requested": row.model_requested}),
        answered_by=" · ".join(filter(None, (row.upstream, row.model_upstream))) or "nobody",
        stop=(row.stop_reason or row.error_type).replace("_", " ") or "—",
        tokens=" / ".join(short_count(count) for count in counts),
        tokens_exact="in {}, cached {}, out {}".format(
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


def session_url(session_id: str) -> str:
    """The session's own page, or its requests where there is none."""
    try:
        return f"{reverse('admin:proxy_session')}?{urlencode({'id': session_id})}"
    except NoReverseMatch:
        base = reverse("admin:proxy_exchange_changelist")
        return f"{base}?{urlencode({'session_id': session_id})}"


def _sum(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
