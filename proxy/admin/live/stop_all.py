"""The page that stops all running requests of a team, a gateway key or an upstream.

Without parameters it lists what is running. With ``kind`` and ``name`` it asks for confirmation.
"""

from collections import Counter
from typing import Any, Final
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from proxy.admin.core.pages import page, require_reader
from proxy.audit_log import Action, record
from proxy.counters.budget_store import StoreUnavailable
from proxy.live.live_view_sync import live_view_sync
from proxy.live.running_requests import ADMINISTRATOR, LiveRow
from proxy.models import ApiKey
from proxy.permissions.stop_permissions import (
    KINDS,
    MAX_NAME,
    find_stoppable,
    live_values,
    may_stop_all,
    stoppable,
)

from .views import visible_running

MAX_LISTED: Final = 50
LABELS: Final = {"team": "Team", "key": "Gateway key", "upstream": "Upstream"}


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
