"""The live view: the running requests, and the pages that stop one, or all of one kind.

The page works without JavaScript. Its script receives updates over a WebSocket (``consumers``), or
polls ``rows_view`` if the WebSocket cannot connect. The page, the WebSocket and ``rows_view`` get
their rows from ``live_cells``.

``stop_all_view`` stops the requests of a team, a gateway key or an upstream. Without parameters it
lists what is running. With ``kind`` and ``name`` it asks for confirmation.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from proxy.admin.core.exchange_text import cost_of, outcome_label, session_url, shorter_id
from proxy.admin.core.number_format import duration, short_count
from proxy.admin.core.pages import page, require_reader
from proxy.audit_log import Action, record
from proxy.counters.store import StoreUnavailable
from proxy.ledger.transcripts.visible_text import show_invisible
from proxy.live.live_view_sync import live_view_sync
from proxy.live.running_requests import ADMINISTRATOR, STATES, LiveRow, running_rows, seen_by
from proxy.models import ApiKey, Exchange, State, TokenSource
from proxy.permissions.row_permissions import Reader, can_see, visible_exchanges
from proxy.permissions.stop_permissions import (
    KINDS,
    MAX_NAME,
    find_stoppable,
    live_values,
    may_stop_all,
    stoppable,
)
from proxy.permissions.write_permissions import may_stop

MAX_SHOWN: Final = 200
MAX_KNOWN: Final = 300
"""Maximum request ids in the parameter ``known``, with which the page polls for updates."""

MAX_LISTED: Final = 50
LABELS: Final = {"team": "Team", "key": "Gateway key", "upstream": "Upstream"}
Cells = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LiveView:
    """The running requests that one user may see, at one instant."""

    rows: list[Cells]  # newest first
    count: int
    """Number of running requests, including those that do not fit into ``rows``."""
    incomplete: bool
    """Whether requests of other gateway processes are missing, because they cannot be read."""


def visible_running(reader: Reader) -> tuple[list[LiveRow], bool]:
    """Return the running requests of all gateway processes that the reader may see, newest first.

    The second value is true if the requests of other processes could not be read. The function may
    block.
    """
    rows, incomplete = running_rows(), False
    try:
        elsewhere = live_view_sync.rows_elsewhere()
    except StoreUnavailable:
        incomplete = True
    else:
        known = {row["id"] for row in rows}
        rows += [row for row in elsewhere if row["id"] not in known]
    mine = [row for row in rows if can_see(reader, **seen_by(row))]
    return sorted(mine, key=lambda row: row["age_ms"]), incomplete


def load_live_view(user: Any, reader: Reader) -> LiveView:
    """Return the running requests that this user may see, by the permissions at this instant."""
    rows, incomplete = visible_running(reader)
    return LiveView([live_cells(row, user) for row in rows[:MAX_SHOWN]], len(rows), incomplete)


def live_cells(row: LiveRow, user: Any) -> Cells:
    """Return the table cells of one running request; the page's script advances ``age_ms``."""
    upstream = " · ".join(filter(None, (row["upstream"], row["upstream_model"])))
    kind = "stream" if row["stream"] else "not streamed"
    session = row["session"]
    return _visible(
        {
            "id": row["id"],
            "url": reverse("admin:proxy_exchange_change", args=[row["id"]]),
            "age_ms": row["age_ms"],
            "age": duration(row["age_ms"]),
            "state": row["state"],
            "text": STATES.get(row["state"], row["state"]),
            "caller": f"{row['team']} / {row['key']}",
            "client": row["client"] or "unknown client",
            "user": row["user"],
            "agent": row["agent"],
            "model": row["model"] or "—",
            "upstream": upstream or "…",
            "attempts": row["attempts"] if row["attempts"] > 1 else 0,
            "kind": " · ".join(filter(None, (kind, row["speed"], row["inference_geo"]))),
            "session": shorter_id(session),
            "session_url": session_url(session) if session else "",
            "input": _token_text(row["input_tokens"], row["estimated"]),
            "output": _token_text(row["output_tokens"], row["estimated"]),
            "first": duration(row["first_ms"]),
            "stop_url": reverse("admin:proxy_live_stop", args=[row["id"]])
            if row["state"] != "stopping" and may_stop(user, owner=row["user_id"])
            else "",
        }
    )


def _visible(cells: Cells) -> Cells:
    """Return the cells with invisible characters shown as code points."""
    return {
        name: show_invisible(value) if isinstance(value, str) else value
        for name, value in cells.items()
    }


def _token_text(count: int | None, estimated: bool) -> str:
    """Format a token count; an estimated count starts with ≈."""
    return f"≈ {short_count(count)}" if estimated else short_count(count)


def finished_rows(reader: Reader, ids: Iterable[str]) -> list[Cells]:
    """Return the outcomes of the requests in ``ids``, except those still open in the ledger."""
    rows = visible_exchanges(reader).filter(pk__in=list(ids)[:MAX_KNOWN], state=State.CLOSED)
    found = []
    for row in rows:
        tone, outcome_text = outcome_label(row)
        stopped = row.detail == "stopped"
        cells = {
            "id": row.pk,
            "tone": tone,
            "text": "stopped" if stopped else outcome_text,
            "stop_reason": "by an administrator" if stopped else row.stop_reason or row.error_type,
            "input": _token_text(row.input_tokens, row.input_source == TokenSource.ESTIMATED),
            "output": _token_text(row.output_tokens, row.output_source == TokenSource.ESTIMATED),
            "cost": cost_of(row),
            "total_ms": row.total_ms,
            "total": duration(row.total_ms),
        }
        found.append(_visible(cells))
    return found


@require_GET
def live_view(request: HttpRequest) -> HttpResponse:
    """Show the live page, which lists the running requests."""
    view = load_live_view(request.user, require_reader(request))
    return page(
        request,
        "live/page",
        "Live",
        view=view,
        shown=len(view.rows),
        feed_url="/ws/live/",
        rows_url=reverse("admin:proxy_live_rows"),
        may_stop_all=may_stop_all(request.user),
    )


@require_GET
def rows_view(request: HttpRequest) -> HttpResponse:
    """Return the rows as JSON for a page without a WebSocket.

    The parameter ``known`` lists the request ids on the page, so that their end can be reported.
    """
    reader = require_reader(request)
    view = load_live_view(request.user, reader)
    running = {row["id"] for row in view.rows}
    known = request.GET.get("known", "").replace("\x00", "").split(",")
    ended = finished_rows(reader, [name for name in known if name and name not in running])
    return JsonResponse({**asdict(view), "ended": ended})


@require_POST
def stop_view(request: HttpRequest, exchange_id: str) -> HttpResponse:
    """Stop one running request, in this or another gateway process."""
    owner = _owner_of(require_reader(request), exchange_id)
    if owner is None:
        text, level = "The request has already ended.", messages.INFO
    elif not may_stop(request.user, owner=owner):
        raise PermissionDenied
    else:
        try:
            live_view_sync.request_stop(exchange_id, ADMINISTRATOR)
        except StoreUnavailable:
            text, level = "The process that runs it cannot be reached.", messages.ERROR
        else:
            record(Action.STOP, Exchange(pk=exchange_id), detail="one running request")
            text, level = f"Request {exchange_id} is being stopped.", messages.SUCCESS
    if request.headers.get("accept", "").startswith("application/json"):
        return JsonResponse({"message": text}, status=503 if level == messages.ERROR else 200)
    messages.add_message(request, level, text)
    return HttpResponseRedirect(reverse("admin:proxy_live"))


def _owner_of(reader: Reader, exchange_id: str) -> str | None:
    """Return the ledger id of the person who sent a running request; None if the request has ended.

    Raises Http404 for an unknown request, and for one that the reader may not see. A request that
    another process has not published yet is found as an open row of the ledger.
    """
    for row in visible_running(reader)[0]:
        if row["id"] == exchange_id:
            return row["user_id"]
    found = visible_exchanges(reader).filter(pk=exchange_id).only("state", "user").first()
    if found is None:
        raise Http404("no such request")
    return found.user if found.state == State.OPEN else None


class StopForm(forms.Form):
    """What to stop. ``row`` of the cleaned data is the team, key or upstream."""

    kind = forms.ChoiceField(choices=list(LABELS.items()))
    name = forms.CharField(max_length=MAX_NAME, help_text="A key is named team/key.")

    def __init__(self, user: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if "kind" in values and "name" in values:
            values["row"] = find_stoppable(self.user, values["kind"], values["name"])
            if values["row"] is None:
                self.add_error("name", "There is none of this name whose requests you may stop.")
        return values


def stop_all_url(user: Any, key: ApiKey) -> str:
    """Return the URL of the confirmation page for a key; "" if the user may not stop requests."""
    if find_stoppable(user, "key", str(key)) is None:
        return ""
    return _url("key", str(key))


def _url(kind: str, name: str) -> str:
    return f"{reverse('admin:proxy_live_stop_all')}?{urlencode({'kind': kind, 'name': name})}"


@require_http_methods(["GET", "HEAD", "POST"])
def stop_all_view(request: HttpRequest) -> HttpResponse:
    """Show what can be stopped, ask for confirmation, or on a POST stop it."""
    reader = require_reader(request)
    if not may_stop_all(request.user):
        raise PermissionDenied
    given = request.POST or request.GET
    form = StopForm(request.user, given if given.keys() & {"kind", "name"} else None)
    chosen = form.cleaned_data if form.is_valid() else {}
    if request.method == "POST" and chosen:
        return _stop(request, chosen["kind"], chosen["row"])
    rows, incomplete = visible_running(reader)
    count = 0
    if chosen:
        column, wanted = KINDS[chosen["kind"]][1], set(live_values(chosen["row"]))
        count = sum(dict(row)[column] in wanted for row in rows)
    return page(
        request,
        "live/stop_all",
        "Stop running requests",
        form=form,
        chosen=chosen,
        label=LABELS.get(chosen.get("kind", ""), "").lower(),
        count=count,
        listed=[] if chosen else _running_by_kind(request.user, rows),
        incomplete=incomplete,
    )


def _running_by_kind(user: Any, rows: list[LiveRow]) -> list[dict[str, Any]]:
    """Return what has running requests and may be stopped, the busiest of each kind first."""
    names = {
        "team": [row["team"] for row in rows],
        "key": [f"{row['team']}/{row['key']}" for row in rows],
        "upstream": [row["upstream"] for row in rows if row["upstream"]],
    }
    return [
        {"label": label, "name": name, "count": count, "url": _url(kind, name)}
        for kind, label in LABELS.items()
        if stoppable(user, kind).exists()
        for name, count in Counter(names[kind]).most_common(MAX_LISTED)
    ]


def _stop(request: HttpRequest, kind: str, row: Any) -> HttpResponse:
    record(Action.STOP, row, detail="all running requests")
    try:
        for value in live_values(row):
            live_view_sync.request_stop_all(KINDS[kind][1], value, ADMINISTRATOR)
    except StoreUnavailable:
        text = "The requests of other processes may still run: the processes cannot be reached."
        messages.error(request, text)
    else:
        text = f"All running requests of {LABELS[kind].lower()} {row} are being stopped."
        messages.success(request, text)
    return HttpResponseRedirect(reverse("admin:proxy_live"))
