"""One session as a whole: its shape in time and money, and the conversation it amounts to.

A session's id is what the client sent, so two strangers may send the same: who looks sees only
their rows of it, wherever they look.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from proxy.audit_trail import note
from proxy.models import Exchange
from proxy.record.additions import Addition, additions
from proxy.visibility import reader_of_user, visible_exchanges

from . import books
from .clips import Clipper
from .conversation import Turn, read_answer, read_turn, results_of
from .exports import Told, as_file, joined, jsonl, markdown
from .figures import UNKNOWN, cost_of, dollars, duration, share, short_count, unpriced
from .headers import harden
from .live import only_readers, session_url
from .session_shape import Lane, Step, broken_pairs, lanes_of, steps_of
from .summary import tone_of
from .transcript import READ_RAW, READ_TRANSCRIPT
from .waterfall import draw

MOST_STEPS: Final = 500
"""Requests of one session on its page; the newest ones."""
TALK_PAGE: Final = 20
"""Requests whose words are on one page of the conversation."""
MOST_EXPORTED: Final = 2000

STEP_FIELDS: Final = (
    "id", "state", "outcome", "status", "stop_reason", "error_type", "created", "finished",
    "ttft_ms", "total_ms", "team", "key_id", "key_name", "user", "session_id", "agent_id",
    "client_name", "client_version", "model_requested", "model_upstream", "upstream",
    "input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens",
    "output_tokens", "cost_nanousd", "price", "message_count", "tool_calls", "preview",
    "previous_id", "new_from",
)  # fmt: skip


@require_GET
def session_view(request: HttpRequest) -> HttpResponse:
    """One session. ``tab``: its shape, or its words; ``from``: the first request of a page."""
    only_readers(request)
    session_id, rows, count = _rows_of(request, MOST_STEPS)
    tab = "words" if request.GET.get("tab") == "words" else "shape"
    may_read = request.user.has_perm(READ_TRANSCRIPT)
    pairs = broken_pairs(rows)
    broken = [row for row in rows if row.pk in pairs]
    settings = additions(broken, words=False) if pairs else {}
    steps = steps_of(rows, {name: one.setting for name, one in settings.items()})
    lanes = lanes_of(steps)
    context = {
        **admin.site.each_context(request),
        "title": f"Session {session_id}",
        "session": session_id,
        "opts": Exchange._meta,  # noqa: SLF001  # what the admin's own templates are given
        "url": session_url(session_id),
        "tab": tab,
        "may_read": may_read,
        "may_export": may_read and request.user.has_perm(READ_RAW),
        "steps": steps,
        "count": count,
        "lanes": lanes,
        "totals": _totals(steps, lanes),
        "breaks": [step for step in steps if step.broke],
        "requests_url": f"{reverse('admin:proxy_exchange_changelist')}?"
        + urlencode({"session_id": session_id}),
        "export_url": f"{reverse('admin:proxy_session_export')}?" + urlencode({"id": session_id}),
    }
    if tab == "words" and may_read:
        context |= _words(request, steps)
    elif tab == "shape":
        context |= {"waterfall": draw(steps, lanes), "lines": [_line_of(step) for step in steps]}
    return harden(TemplateResponse(request, "admin/proxy/session/page.html", context))


def _rows_of(request: HttpRequest, most: int) -> tuple[str, list[Exchange], int]:
    """The newest rows of a session that this user may see, oldest first, and how many there are."""
    session_id = request.GET.get("id", "")
    reader = reader_of_user(request.user)
    rows = visible_exchanges(reader).filter(session_id=session_id).only(*STEP_FIELDS)
    if not session_id or "\x00" in session_id:
        raise Http404("no such session")
    found = list(rows.order_by("-created", "-pk")[: most + 1])
    if not found:
        raise Http404("no such session")
    count = rows.count() if len(found) > most else len(found)
    return session_id, found[most - 1 :: -1] if len(found) > most else found[::-1], count


def _totals(steps: Sequence[Step], lanes: Sequence[Lane]) -> dict[str, Any]:
    rows = [step.row for step in steps]
    first, last = rows[0], rows[-1]
    ended = max((row.finished or row.created for row in rows), default=last.created)
    read = books.total(row.cache_read_tokens for row in rows)
    sent = books.total(step.context for step in steps)
    cost, lacking = steps[-1].total_nanousd, any(unpriced(row) for row in rows)
    priced = bool(cost) or any(row.cost_nanousd is not None for row in rows)
    lost = sum(step.broke.nanousd or 0 for step in steps if step.broke)
    return {
        "first": first,
        "ended": ended,
        "length": duration((ended - first.created).total_seconds() * 1000),
        "working": duration(sum(row.total_ms or 0 for row in rows)),
        "cost": dollars(cost if priced or not lacking else None),
        "floor": priced and lacking,
        "input": short_count(sent),
        "cached": UNKNOWN if read is None else share(read, (sent or 0) - read),
        "output": short_count(books.total(row.output_tokens for row in rows)),
        "tool_calls": sum(row.tool_calls for row in rows),
        "failed": sum(tone_of(row)[0] == "bad" for row in rows),
        "agents": sum(lane.kind == "agent" for lane in lanes),
        "branches": sum(lane.kind == "branch" for lane in lanes),
        "models": sorted({row.model_upstream or row.model_requested for row in rows}),
        "lost": dollars(lost) if lost else "",
    }


def _line_of(step: Step) -> dict[str, Any]:
    """One request in the table of requests."""
    row = step.row
    tone, word = tone_of(row)
    return {
        "step": step,
        "row": row,
        "tone": tone,
        "word": word,
        "stop": row.stop_reason or row.error_type,
        "context": short_count(step.context),
        "cached": share(row.cache_read_tokens, (step.context or 0) - (row.cache_read_tokens or 0))
        if row.cache_read_tokens is not None
        else "—",
        "output": short_count(row.output_tokens),
        "cost": cost_of(row),
        "total": dollars(step.total_nanousd),
        "took": duration(row.total_ms),
        "lost": f"{step.broke.lost_tokens:,}" if step.broke else "",
        "lost_cost": dollars(step.broke.nanousd)
        if step.broke and step.broke.nanousd is not None
        else "",
    }


def _words(request: HttpRequest, steps: Sequence[Step]) -> dict[str, Any]:
    """A page of the conversation: of each request only what it added."""
    given = request.GET.get("from", "")
    start = int(given) - 1 if given.isascii() and given.isdigit() and len(given) < 6 else 0
    start = max(0, min(start, len(steps) - 1))
    page = steps[start : start + TALK_PAGE]
    added = additions(step.row for step in page)
    note(
        request.user,
        page[-1].row,
        f"Read the session {page[0].row.session_id[:80]}, requests {start + 1} to "
        f"{start + len(page)}.",
    )
    return {
        "talk": _talk(page, added),
        "page_from": start + 1,
        "page_to": start + len(page),
        "earlier": max(1, start + 1 - TALK_PAGE) if start else None,
        "later": start + TALK_PAGE + 1 if start + TALK_PAGE < len(steps) else None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One request in the conversation."""

    line: Mapping[str, Any]
    added: Addition
    turns: Sequence[Turn]
    answer: Turn | None


def _talk(page: Sequence[Step], added: Mapping[str, Addition]) -> list[Spoken]:
    results = results_of(
        (f"{step.row.pk}:{where}", message)
        for step in page
        for where, message in _messages_of(added[step.row.pk])
    )
    clipper = Clipper()
    talk = []
    for step in page:
        one, owner = added[step.row.pk], f"{step.row.pk}:"
        turns = [
            turn
            for number, message in enumerate(one.messages, one.first)
            if (turn := read_turn(message, number, results, clipper, is_new=False, owner=owner))
        ]
        answer = read_answer(one.answer, clipper, results, owner=owner)
        talk.append(Spoken(line=_line_of(step), added=one, turns=turns, answer=answer))
    return talk


def _messages_of(one: Addition) -> Iterable[tuple[str, Any]]:
    for number, message in enumerate(one.messages, one.first):
        yield f"messages.{number}", message
    if one.answer is not None:
        yield "answer", one.answer


@require_GET
def export_view(request: HttpRequest) -> HttpResponse:
    """The whole session as a file: ``format`` jsonl (Claude Code's) or markdown."""
    only_readers(request)
    if not (request.user.has_perm(READ_TRANSCRIPT) and request.user.has_perm(READ_RAW)):
        raise PermissionDenied
    chosen = request.GET.get("format", "jsonl")
    if chosen not in {"jsonl", "markdown"}:
        raise Http404("no such format")
    session_id, rows, _ = _rows_of(request, MOST_EXPORTED)
    added = additions(rows, most=MOST_EXPORTED)
    told = [Told(row, added[row.pk]) for row in rows]
    note(request.user, rows[-1], f"Exported the session {session_id[:80]} as {chosen}.")
    if chosen == "jsonl":
        return as_file(joined(jsonl(told)), f"{_safe(session_id)}.jsonl")
    return as_file(joined(markdown(told, f"Session {session_id}")), f"{_safe(session_id)}.md")


def _safe(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name[:60])
    return kept.strip("-") or "session"
