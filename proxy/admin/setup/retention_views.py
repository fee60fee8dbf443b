"""The size of the database, the number of transcripts past their retention, and their purge."""

from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.timezone import now
from django.views.decorators.http import require_http_methods, require_safe

from proxy.admin.core.csp_middleware import set_security_headers
from proxy.admin.core.number_format import size
from proxy.conf import conf
from proxy.ledger.database.access import QueryTimeout, with_query_timeout
from proxy.ledger.maintenance import purge_jobs
from proxy.ledger.maintenance.purge_jobs import ExpiredTranscripts, Space
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
    _require_purge_permission(request)
    space = purge_jobs.space()
    purges = [_purge_row(purge) for purge in Purge.objects.all()[:SHOWN_PURGES]]
    context = {
        **admin.site.each_context(request),
        "title": "Storage",
        "size": size(space.size),
        "free": None if space.free is None else size(space.free),
        "disk": None if space.disk is None else size(space.disk),
        "due": _due_context(),
        "hour": conf.purge_hour,
        "purges": purges,
        "running": any(purge["running"] for purge in purges),
    }
    page = TemplateResponse(request, "admin/proxy/storage/page.html", context)
    if context["running"]:
        page["Refresh"] = str(REFRESH_S)
    return set_security_headers(page)


@require_http_methods(["GET", "HEAD", "POST"])
def purge_view(request: HttpRequest) -> HttpResponse:
    """Show what a purge would delete (GET), or start the purge (POST)."""
    _require_purge_permission(request)
    due, space = _due_context(), purge_jobs.space()
    form = PurgeForm(request.POST if request.method == "POST" else None)
    if not _may_rewrite(space):
        del form.fields["rewrite"]
    if request.method == "POST" and form.is_valid():
        return _start_purge(request, due, rewrite=form.cleaned_data.get("rewrite", False))
    context = {
        **admin.site.each_context(request),
        "title": "Purge",
        "due": due,
        "form": form,
        "sqlite": connection.vendor == "sqlite",
        "size": size(space.size),
    }
    return set_security_headers(
        TemplateResponse(request, "admin/proxy/storage/purge.html", context)
    )


def _require_purge_permission(request: HttpRequest) -> None:
    if not may_purge(request.user):
        raise PermissionDenied


def _may_rewrite(space: Space) -> bool:
    """Whether the disk has enough space for VACUUM, which writes a new SQLite file and a WAL."""
    return connection.vendor == "sqlite" and (space.disk is None or space.disk > 2 * space.size)


def _start_purge(request: HttpRequest, due: dict[str, Any], *, rewrite: bool) -> HttpResponse:
    try:
        purge_jobs.start_purge(request.user, rewrite=rewrite, expected=due["transcripts"])
    except purge_jobs.PurgeAlreadyRunning:
        messages.warning(request, "A purge is already running.")
    else:
        messages.success(request, "The purge has started; this page shows its progress.")
    return HttpResponseRedirect(reverse("admin:proxy_storage"))


def _due_context() -> dict[str, Any]:
    """Return what a purge would delete; ``transcripts`` is None if counting takes too long."""
    try:
        with with_query_timeout():
            found = purge_jobs.expired_by_team(now())
    except QueryTimeout:
        return {"teams": [], "transcripts": None, "text": "too many to count within two seconds"}
    count = sum(due.transcripts for due in found)
    text = f"{_counted(count, 'transcript')} of {_counted(len(found), 'team')}"
    return {
        "teams": [_team_row(due) for due in found],
        "transcripts": count,
        "text": text if found else "nothing",
    }


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _team_row(due: ExpiredTranscripts) -> dict[str, Any]:
    return {
        "team": due.team or "(no team)",
        "retention_days": due.retention_days,
        "before": due.before,
        "transcripts": f"{due.transcripts:,}",
        "oldest": due.oldest,
        "size": size(due.bytes),
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
