"""How much room the record takes, what of it is past its time, and the button that purges that."""

from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.timezone import now
from django.views.decorators.http import require_http_methods, require_safe

from proxy.audit_trail import note
from proxy.conf import conf
from proxy.models import Purge, PurgeState
from proxy.record import purging
from proxy.record.purging import Due, Space
from proxy.write_permissions import may_purge

from .figures import size
from .headers import harden
from .patience import TooSlow, patient

SHOWN: Final = 10
LOOK_AGAIN_S: Final = 5


class PurgeForm(forms.Form):
    rewrite = forms.BooleanField(
        required=False, label="Rewrite the file afterwards, so that the disk gets the space back"
    )


@require_safe
def storage_view(request: HttpRequest) -> HttpResponse:
    _only_purgers(request)
    space = purging.space()
    purges = [_shown(one) for one in Purge.objects.all()[:SHOWN]]
    context = {
        **admin.site.each_context(request),
        "title": "Storage",
        "size": size(space.size),
        "free": None if space.free is None else size(space.free),
        "disk": None if space.disk is None else size(space.disk),
        "due": _due(),
        "hour": conf.purge_hour,
        "purges": purges,
        "running": any(one["running"] for one in purges),
    }
    page = TemplateResponse(request, "admin/proxy/storage/page.html", context)
    if context["running"]:
        page["Refresh"] = str(LOOK_AGAIN_S)
    return harden(page)


@require_http_methods(["GET", "HEAD", "POST"])
def purge_view(request: HttpRequest) -> HttpResponse:
    """GET says what would go; POST lets it go."""
    _only_purgers(request)
    due, space = _due(), purging.space()
    form = PurgeForm(request.POST if request.method == "POST" else None)
    if not _may_rewrite(space):
        del form.fields["rewrite"]
    if request.method == "POST" and form.is_valid():
        return _begun(request, due, rewrite=form.cleaned_data.get("rewrite", False))
    context = {
        **admin.site.each_context(request),
        "title": "Purge",
        "due": due,
        "form": form,
        "sqlite": connection.vendor == "sqlite",
        "size": size(space.size),
    }
    return harden(TemplateResponse(request, "admin/proxy/storage/purge.html", context))


def _only_purgers(request: HttpRequest) -> None:
    if not may_purge(request.user):
        raise PermissionDenied


def _may_rewrite(space: Space) -> bool:
    """SQLite writes the file anew beside the old one, and through the write-ahead log."""
    return connection.vendor == "sqlite" and (space.disk is None or space.disk > 2 * space.size)


def _begun(request: HttpRequest, due: dict[str, Any], *, rewrite: bool) -> HttpResponse:
    try:
        with transaction.atomic():
            purge = purging.begin(request.user, rewrite=rewrite, expected=due["transcripts"])
            note(request.user, purge, f"Purged what was past its time: {due['words']}.")
    except purging.Running:
        messages.warning(request, "A purge is running already.")
    else:
        messages.success(request, "The purge has begun; this page tells how far it is.")
    return HttpResponseRedirect(reverse("admin:proxy_storage"))


def _due() -> dict[str, Any]:
    """``transcripts``: None when they are too many to be counted now."""
    try:
        with patient():
            found = purging.due(now())
    except TooSlow:
        return {"teams": [], "transcripts": None, "words": "too much to be counted in two seconds"}
    count = sum(one.transcripts for one in found)
    words = f"{_counted(count, 'transcript')} of {_counted(len(found), 'team')}"
    return {
        "teams": [_line(one) for one in found],
        "transcripts": count,
        "words": words if found else "nothing",
    }


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _line(one: Due) -> dict[str, Any]:
    return {
        "team": one.team or "(no team)",
        "keeps": one.keeps_days,
        "before": one.before,
        "transcripts": f"{one.transcripts:,}",
        "oldest": one.oldest,
        "size": size(one.bytes),
    }


def _shown(purge: Purge) -> dict[str, Any]:
    running = purge.state == PurgeState.RUNNING and not purge.silent
    done = purge.expected and min(100.0, 100 * purge.transcripts / purge.expected)
    return {
        "at": purge.created,
        "who": purge.username,
        "running": running,
        "state": "silent" if purge.silent else purge.state,
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
