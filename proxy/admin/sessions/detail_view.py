"""The page of one session: a timeline of its requests with their costs, and its conversation.

Clients choose the session ids, so two clients may use the same id. On the page and in exports, a
user sees only those requests of a session that the user's permissions allow.
"""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from proxy.admin.core.csp_middleware import ArchivedPage
from proxy.admin.core.exchange_text import cost_of, is_unpriced, outcome_label, session_url
from proxy.admin.core.number_format import UNKNOWN, cache_percent, dollars, duration, short_count
from proxy.admin.core.pages import (
    READ_RAW,
    READ_TRANSCRIPT,
    page,
    require_reader,
    text_mode,
    text_mode_links,
    whole_number,
)
from proxy.admin.dashboard import queries
from proxy.admin.transcript.conversation import read_answer, read_turn, results_by_call
from proxy.admin.transcript.export import (
    ExportedRequest,
    download_response,
    jsonl_lines,
    markdown_lines,
)
from proxy.admin.transcript.truncation import Truncator
from proxy.audit_log import Action
from proxy.ledger.archive.reading import archived_months, archived_months_near, restore_hint
from proxy.ledger.transcripts.session_diff import additions
from proxy.models import Exchange
from proxy.permissions.readings import (
    Kind,
    ReadObject,
    first_words,
    needs_reason,
    record_reading,
)
from proxy.permissions.row_permissions import Reader, visible_exchanges

from .timeline import Lane, Step, cache_break_ids, draw_waterfall, lanes_of, steps_of

MAX_STEPS: Final = 500
"""Maximum requests on the page of a session; it shows the newest ones."""
REQUESTS_PER_PAGE: Final = 20
"""Requests on one page of the conversation tab."""
MAX_EXPORTED: Final = 2000

STEP_FIELDS: Final = (
    "id", "state", "outcome", "status", "stop_reason", "error_type", "created", "finished",
    "ttft_ms", "total_ms", "team", "key_id", "key_name", "user", "session_id", "agent_id",
    "client_name", "client_version", "model_requested", "model_upstream", "upstream",
    "input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens",
    "output_tokens", "cost_nanousd", "price", "message_count", "tool_calls", "preview",
    "prompt", "previous_id", "new_from",
)  # fmt: skip


@require_GET
def session_view(request: HttpRequest) -> HttpResponse:
    """Show one session.

    With the query parameter ``tab=words`` the page shows the conversation, starting with the
    request number ``from``; otherwise it shows the timeline.
    """
    reader = require_reader(request)
    session_id, rows, count = _load_rows(request, reader, MAX_STEPS)
    tab = "words" if request.GET.get("tab") == "words" else "timeline"
    may_read = request.user.has_perm(READ_TRANSCRIPT)
    ids = cache_break_ids(rows)
    broken = [row for row in rows if row.pk in ids]
    settings = additions(broken, with_texts=False) if ids else {}
    steps = steps_of(rows, {name: one.settings_parts for name, one in settings.items()})
    lanes = lanes_of(steps)
    context: dict[str, Any] = {}
    if tab == "words" and may_read:
        context = _conversation_page(request, reader, steps)
    elif tab == "timeline":
        context = {
            "waterfall": draw_waterfall(steps, lanes),
            "rows": [
                _request_row(step) | {"hides_words": needs_reason(reader, step.row)}
                for step in steps
            ],
        }
    requests_url = reverse("admin:proxy_exchange_changelist")
    export_url = reverse("admin:proxy_session_export")
    return page(
        request,
        "session/page",
        f"Session {session_id}",
        archived_hint=restore_hint(archived_months_near(rows[0].created, rows[-1].created)),
        session=session_id,
        opts=Exchange._meta,  # noqa: SLF001  # Django's admin templates need it
        url=session_url(session_id),
        tab=tab,
        may_read=may_read,
        may_export=may_read and request.user.has_perm(READ_RAW),
        steps=steps,
        count=count,
        lanes=lanes,
        totals=_totals(steps, lanes, reader),
        cache_breaks=[step for step in steps if step.cache_break],
        requests_url=f"{requests_url}?{urlencode({'session_id': session_id})}",
        export_url=f"{export_url}?{urlencode({'id': session_id})}",
        **context,
    )


def _load_rows(request: HttpRequest, reader: Reader, limit: int) -> tuple[str, list[Exchange], int]:
    """Return the session id, its newest ``limit`` requests in time order, and their total count.

    The result and the count contain only requests that the reader may see. Raises Http404 if there
    are none.
    """
    session_id = request.GET.get("id", "")
    if not session_id or "\x00" in session_id:
        raise Http404("no such session")
    rows = visible_exchanges(reader).filter(session_id=session_id).only(*STEP_FIELDS)
    found = list(rows.order_by("-created", "-pk")[: limit + 1])
    if not found:
        if months := archived_months(None, None):
            raise ArchivedPage(months)
        raise Http404("no such session")
    count = rows.count() if len(found) > limit else len(found)
    return session_id, found[:limit][::-1], count


def _totals(steps: Sequence[Step], lanes: Sequence[Lane], reader: Reader) -> dict[str, Any]:
    rows = [step.row for step in steps]
    first, last = rows[0], rows[-1]
    ended = max((row.finished or row.created for row in rows), default=last.created)
    read = queries.sum_known(row.cache_read_tokens for row in rows)
    sent = queries.sum_known(step.context_tokens for step in steps)
    cost, some_unpriced = steps[-1].total_nanousd, any(is_unpriced(row) for row in rows)
    priced = bool(cost) or any(row.cost_nanousd is not None for row in rows)
    extra = sum(step.cache_break.extra_nanousd or 0 for step in steps if step.cache_break)
    titled = next((row for row in rows if row.tool_calls), first)
    return {
        "first": first,
        "title": first_words(reader, titled),
        "ended": ended,
        "length": duration((ended - first.created).total_seconds() * 1000),
        "active": duration(sum(row.total_ms or 0 for row in rows)),
        "cost": dollars(cost if priced or not some_unpriced else None),
        "is_minimum": priced and some_unpriced,
        "input": short_count(sent),
        "cached": UNKNOWN if read is None else cache_percent(read, (sent or 0) - read),
        "output": short_count(queries.sum_known(row.output_tokens for row in rows)),
        "tool_calls": sum(row.tool_calls for row in rows),
        "failed": sum(outcome_label(row)[0] == "bad" for row in rows),
        "agents": sum(lane.kind == "agent" for lane in lanes),
        "branches": sum(lane.kind == "branch" for lane in lanes),
        "models": sorted({row.model_upstream or row.model_requested for row in rows}),
        "cache_break_cost": dollars(extra) if extra else "",
    }


def _request_row(step: Step) -> dict[str, Any]:
    """Return the template values for one row of the session's table of requests."""
    row = step.row
    tone, outcome_text = outcome_label(row)
    return {
        "step": step,
        "row": row,
        "tone": tone,
        "outcome_text": outcome_text,
        "context": short_count(step.context_tokens),
        "cached": cache_percent(
            row.cache_read_tokens, (step.context_tokens or 0) - (row.cache_read_tokens or 0)
        )
        if row.cache_read_tokens is not None
        else "—",
        "output": short_count(row.output_tokens),
        "cost": cost_of(row),
        "total": dollars(step.total_nanousd),
        "duration": duration(row.total_ms),
        "lost_tokens": f"{step.cache_break.lost_tokens:,}" if step.cache_break else "",
        "extra_cost": dollars(step.cache_break.extra_nanousd)
        if step.cache_break and step.cache_break.extra_nanousd is not None
        else "",
    }


def _conversation_page(
    request: HttpRequest, reader: Reader, steps: Sequence[Step]
) -> dict[str, Any]:
    """Return the template context of one page of the conversation.

    For each request, the page shows only the messages that the previous requests did not have, and
    the answer.
    """
    first = whole_number(request.GET.get("from", ""), 5) or 1
    start = max(0, min(first, len(steps)) - 1)
    shown = steps[start : start + REQUESTS_PER_PAGE]
    end = start + len(shown)
    added = additions([step.row for step in shown])
    _record(reader, Action.READ, [step.row for step in shown], f", requests {start + 1} to {end}")
    mode = text_mode(request)
    truncator = Truncator(render_markdown=mode == "rendered")
    results = results_by_call(
        (f"{row_id}:{path}", message)
        for row_id, one in ((step.row.pk, added[step.row.pk]) for step in shown)
        for path, message in (
            *((f"messages.{number}", each) for number, each in enumerate(one.messages, one.first)),
            *([("answer", one.answer)] if one.answer is not None else ()),
        )
    )
    entries = []
    for step in shown:
        one, owner = added[step.row.pk], f"{step.row.pk}:"
        turns = [
            turn
            for number, message in enumerate(one.messages, one.first)
            if (turn := read_turn(message, number, results, truncator, is_new=False, owner=owner))
        ]
        answer = read_answer(one.answer, truncator, results, owner=owner)
        entries.append({"row": _request_row(step), "added": one, "turns": turns, "answer": answer})
    return {
        "entries": entries,
        "text_modes": text_mode_links(request, mode),
        "page_from": start + 1,
        "page_to": end,
        "earlier": max(1, start + 1 - REQUESTS_PER_PAGE) if start else None,
        "later": end + 1 if end < len(steps) else None,
    }


def _record(reader: Reader, action: Action, rows: Sequence[Exchange], detail: str) -> None:
    session_id = rows[0].session_id
    record_reading(
        reader,
        action,
        rows,
        detail=f"session {session_id[:80]}{detail}",
        read=ReadObject(Kind.SESSION, session_id),
    )


@require_GET
def export_view(request: HttpRequest) -> HttpResponse:
    """Return the whole session as a file, in the query's ``format``: jsonl or markdown.

    The jsonl file has the format of Claude Code's session files.
    """
    reader = require_reader(request, READ_TRANSCRIPT, READ_RAW)
    file_format = request.GET.get("format", "jsonl")
    if file_format not in {"jsonl", "markdown"}:
        raise Http404("no such format")
    session_id, rows, _ = _load_rows(request, reader, MAX_EXPORTED)
    added = additions(rows, limit=MAX_EXPORTED)
    requests = [ExportedRequest(row, added[row.pk]) for row in rows]
    _record(reader, Action.EXPORT, rows, f" as {file_format}")
    lines, ending = jsonl_lines(requests), "jsonl"
    if file_format == "markdown":
        lines, ending = markdown_lines(requests, f"Session {session_id}"), "md"
    safe = (c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in session_id[:60])
    return download_response(lines, f"{''.join(safe).strip('-') or 'session'}.{ending}")
