"""The size of the database, the number of transcripts past their retention, and their purge."""

from typing import Any, Final

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.timezone import now
from django.views.decorators.http import require_http_methods, require_safe

from proxy.admin.core.number_format import plural, size
from proxy.admin.core.pages import page
from proxy.conf import conf
from proxy.ledger.database.access import QueryTimeout, with_query_timeout
from proxy.ledger.maintenance import purge_jobs
from proxy.models import Purge, PurgeState
from proxy.permissions.write_permissions import may_purge

SHOWN_PURGES: Final = 10
REFRESH_S: Final = 5


class PurgeForm(forms.Form):
    rewrite = forms.BooleanField(
        required=False, label="Rewrite the file afterwards, to return the space to the disk"
    )


@require_safe
def storage_view(request: HttpRequest) -> HttpResponse:
    """Show the sizes, what a purge would delete, and the last purges with their progress."""
    if not may_purge(request.user):
        raise PermissionDenied
    space = purge_jobs.space()
    purges = [_purge_row(purge) for purge in Purge.objects.all()[:SHOWN_PURGES]]
    running = any(purge["running"] for purge in purges)
    response = page(
        request,
        "storage/page",
        "Storage",
        size=size(space.size),
        free=None if space.free is None else size(space.free),
        disk=None if space.disk is None else size(space.disk),
        due=_due_context(),
        hour=conf.purge_hour,
        purges=purges,
        running=running,
    )
    if running:
        response["Refresh"] = str(REFRESH_S)
    return response


@require_http_methods(["GET", "HEAD", "POST"])
def purge_view(request: HttpRequest) -> HttpResponse:
    """Show what a purge would delete (GET), or start the purge (POST)."""
    if not may_purge(request.user):
        raise PermissionDenied
    due, space, is_sqlite = _due_context(), purge_jobs.space(), connection.vendor == "sqlite"
    form = PurgeForm(request.POST if request.method == "POST" else None)
    # VACUUM writes a new SQLite file and a WAL, for which the disk needs space.
    if not is_sqlite or (space.disk is not None and space.disk <= 2 * space.size):
        del form.fields["rewrite"]
    if request.method == "POST" and form.is_valid():
        rewrite = form.cleaned_data.get("rewrite", False)
        try:
            purge_jobs.start_purge(request.user, rewrite=rewrite, expected=due["transcripts"])
        except purge_jobs.PurgeAlreadyRunning:
            messages.warning(request, "A purge is already running.")
        else:
            messages.success(request, "The purge has started; this page shows its progress.")
        return HttpResponseRedirect(reverse("admin:proxy_storage"))
    return page(
        request,
        "storage/purge",
        "Purge",
        due=due,
        form=form,
        sqlite=is_sqlite,
        size=size(space.size),
    )


def _due_context() -> dict[str, Any]:
    """Return what a purge would delete; ``transcripts`` is None if counting takes too long."""
    try:
        with with_query_timeout():
            found = purge_jobs.expired_by_team(now())
    except QueryTimeout:
        return {"teams": [], "transcripts": None, "text": "too many to count within two seconds"}
    count = sum(due.transcripts for due in found)
    return {
        "teams": [
            {
                "team": due.team or "(no team)",
                "retention_days": due.retention_days,
                "before": due.before,
                "transcripts": f"{due.transcripts:,}",
                "oldest": due.oldest,
                "size": size(due.bytes),
            }
            for due in found
        ],
        "transcripts": count,
        "text": f"{plural(count, 'transcript')} of {plural(len(found), 'team')}"
        if found
        else "nothing",
    }


def _purge_row(purge: Purge) -> dict[str, Any]:
    running = purge.state == PurgeState.RUNNING and not purge.is_stalled
    done = purge.expected and min(100.0, 100 * purge.transcripts / purge.expected)
    return {
        "created": purge.created,
        "username": purge.username,
        "running": running,
        "state": "stalled" if purge.is_stalled else purge.state,
        "step": purge.step,
        "percent": round(done, 1) if done else 0,
        "transcripts": f"{purge.transcripts:,}",
        "expected": None if purge.expected is None else f"{purge.expected:,}",
        "parts": f"{purge.parts:,}",
        "freed": None if purge.bytes_freed is None else size(purge.bytes_freed),
        "took": None if purge.finished is None else purge.finished - purge.created,
        "seen": purge.seen,
        "error": purge.error,
    }
