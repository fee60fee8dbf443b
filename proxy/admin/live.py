"""The live view: requests while they run, and the button that stops one.

The page shows them without any script; with one it follows them over a WebSocket (``feed``), or
asks for them every few seconds where no WebSocket gets through. All three show the same ``cells``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from proxy.audit_trail import note
from proxy.counters.store import StoreAway
from proxy.live.messenger import messenger
from proxy.live.running import STATES, Row, glances, seen_by
from proxy.models import Exchange, State, TokenSource
from proxy.visibility import (
    Reader,
    may_open_windows,
    reader_of_user,
    sees,
    visible_exchanges,
)
from proxy.write_permissions import may_stop

from .figures import cost_of, duration, short_count
from .headers import harden
from .summary import tone_of

MOST_SHOWN: Final = 200
MOST_KNOWN: Final = 300
"""Ids that a polling page may ask about at once."""

Cells = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the running requests shows somebody."""

    rows: list[Cells] = field(default_factory=list)  # newest first
    count: int = 0
    """How many run, shown or not."""
    away: bool = False
    """The other processes could not be asked."""


def all_running() -> tuple[list[Row], bool]:
    """What runs here and elsewhere; and whether elsewhere could not be asked. May block."""
    here = glances()
    try:
        elsewhere = messenger.elsewhere()
    except StoreAway:
        return here, True
    known = {row["id"] for row in here}
    return here + [row for row in elsewhere if row["id"] not in known], False


def look_for(user: Any, reader: Reader) -> Look:
    """What this user may see of it: each row is judged each time."""
    rows, away = all_running()
    mine = [row for row in rows if sees(reader, **seen_by(row))]
    mine.sort(key=lambda row: row["age_ms"])
    return Look([cells_of(row, user) for row in mine[:MOST_SHOWN]], len(mine), away)


def cells_of(row: Row, user: Any) -> Cells:
    """One running request, as the page writes it. ``age_ms`` alone is counted on by the page."""
    by = " · ".join(filter(None, (row["upstream"], row["upstream_model"])))
    session = row["session"]
    return {
        "id": row["id"],
        "url": reverse("admin:proxy_exchange_change", args=[row["id"]]),
        "age_ms": row["age_ms"],
        "age": duration(row["age_ms"]),
        "state": row["state"],
        "word": STATES.get(row["state"], row["state"]),
        "caller": f"{row['team']} / {row['key']}",
        "client": row["client"] or "unknown client",
        "user": row["user"],
        "agent": row["agent"],
        "model": row["model"] or "—",
        "by": by or "nobody yet",
        "tries": row["attempts"] if row["attempts"] > 1 else 0,
        "kind": "stream" if row["stream"] else "whole answer",
        "session": session if len(session) <= 9 else f"{session[:8]}…",
        "session_url": session_url(session) if session else "",
        "input": _marked(row["input_tokens"], row["estimated"]),
        "output": _marked(row["output_tokens"], row["estimated"]),
        "first": duration(row["first_ms"]),
        "stop_url": reverse("admin:proxy_live_stop", args=[row["id"]])
        if row["state"] != "stopping" and may_stop(user, owner=row["user"])
        else "",
    }


def _marked(count: int | None, estimated: bool) -> str:
    """Tokens; what is our own estimate says so."""
    return f"≈ {short_count(count)}" if estimated else short_count(count)


def session_url(session_id: str) -> str:
    """By query: an id that a client made up may be anything, a path may not."""
    return f"{reverse('admin:proxy_session')}?{urlencode({'id': session_id})}"


def settled(reader: Reader, ids: Iterable[str]) -> list[Cells]:
    """What became of requests that no longer run; those whose rows are not posted yet are left."""
    rows = visible_exchanges(reader).filter(pk__in=list(ids)[:MOST_KNOWN], state=State.CLOSED)
    return [_ended(row) for row in rows]


def _ended(row: Exchange) -> Cells:
    tone, word = tone_of(row)
    stopped = row.detail == "stopped"
    return {
        "id": row.pk,
        "tone": tone,
        "word": "stopped" if stopped else word,
        "stop_reason": "by an administrator" if stopped else row.stop_reason or row.error_type,
        "input": _marked(row.input_tokens, row.input_source == TokenSource.ESTIMATED),
        "output": _marked(row.output_tokens, row.output_source == TokenSource.ESTIMATED),
        "cost": cost_of(row),
        "total_ms": row.total_ms,
        "total": duration(row.total_ms),
    }


@require_GET
def live_view(request: HttpRequest) -> HttpResponse:
    """The page, complete as it is served."""
    only_readers(request)
    look = look_for(request.user, reader_of_user(request.user))
    context = {
        **admin.site.each_context(request),
        "title": "Live",
        "look": look,
        "shown": len(look.rows),
        "feed_url": "/ws/live/",
        "rows_url": reverse("admin:proxy_live_rows"),
    }
    return harden(TemplateResponse(request, "admin/proxy/live/page.html", context))


@require_GET
def rows_view(request: HttpRequest) -> HttpResponse:
    """The same as JSON, for a page without a WebSocket. ``known``: ids that it shows."""
    only_readers(request)
    reader = reader_of_user(request.user)
    look = look_for(request.user, reader)
    running = {row["id"] for row in look.rows}
    known = [name for name in request.GET.get("known", "").replace("\x00", "").split(",") if name]
    ended = settled(reader, [name for name in known if name not in running])
    told = {"rows": look.rows, "count": look.count, "away": look.away, "settled": ended}
    return harden(JsonResponse(told))


@require_POST
def stop_view(request: HttpRequest, exchange_id: str) -> HttpResponse:
    """Stop one running request, wherever it runs."""
    only_readers(request)
    owner = _owner_of(request, exchange_id)
    if owner is None:
        return _told(request, "It had ended already.", messages.INFO)
    if not may_stop(request.user, owner=owner):
        raise PermissionDenied
    try:
        messenger.order(exchange_id, request.user.get_username())
    except StoreAway:
        return _told(request, "The process that runs it cannot be reached.", messages.ERROR)
    note(request.user, Exchange(pk=exchange_id), "Stopped the running request.")
    return _told(request, f"Request {exchange_id} is being stopped.", messages.SUCCESS)


def _owner_of(request: HttpRequest, exchange_id: str) -> str | None:
    """Whose request that is, if this user may see it; None: it has ended. Raises Http404.

    What another process has not told yet is in the ledger, as a row that is open.
    """
    reader = reader_of_user(request.user)
    for row in all_running()[0]:
        if row["id"] == exchange_id and sees(reader, **seen_by(row)):
            return row["user"]
    found = visible_exchanges(reader).filter(pk=exchange_id).only("state", "user").first()
    if found is None:
        raise Http404("no such request")
    return found.user if found.state == State.OPEN else None


def _told(request: HttpRequest, words: str, level: int) -> HttpResponse:
    if request.headers.get("accept", "").startswith("application/json"):
        status = 503 if level == messages.ERROR else 200
        return harden(JsonResponse({"says": words}, status=status))
    messages.add_message(request, level, words)
    return HttpResponseRedirect(reverse("admin:proxy_live"))


def only_readers(request: HttpRequest) -> None:
    """Raises PermissionDenied for whoever may see no request at all."""
    if not may_open_windows(request.user):
        raise PermissionDenied
