"""Named views of the request list: saved, opened by a link, deleted; each user has their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.http import HttpResponseRedirect as Redirect
from django.urls import reverse

from proxy.models import SavedView
from proxy.visibility import may_open_windows

from .keyset import AFTER, BEFORE

MOST_VIEWS: Final = 50
LIST: Final = "admin:proxy_exchange_changelist"
MOMENTARY: Final = frozenset({BEFORE, AFTER, "e", "p"})
"""Parts of an address that are about a page, not about a view."""


@dataclass(frozen=True, slots=True)
class Saved:
    pk: int
    name: str
    url: str
    current: bool


class ViewForm(forms.Form):
    name = forms.CharField(max_length=60)
    query = forms.CharField(max_length=2000, required=False)


def views_of(user: Any, query: str) -> Sequence[Saved]:
    """The views of a user; ``query`` is the one that is open."""
    here = settled(query)
    rows = SavedView.objects.filter(user=user.pk)[:MOST_VIEWS]
    return [Saved(row.pk, row.name, f"?{row.query}", row.query == here) for row in rows]


def settled(query: str) -> str:
    """A query string in one spelling, without the place on a page."""
    pairs = parse_qsl(query.lstrip("?"), keep_blank_values=False)
    return urlencode(sorted((name, value) for name, value in pairs if name not in MOMENTARY))


def save_view(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not may_open_windows(request.user):
        raise PermissionDenied
    form = ViewForm(request.POST)
    query = settled(request.POST.get("query", "")[:2000])
    if not form.is_valid():
        messages.error(request, "A view needs a name of at most 60 characters.")
    elif SavedView.objects.filter(user=request.user.pk).count() >= MOST_VIEWS:
        messages.error(request, f"There are {MOST_VIEWS} views; delete one first.")
    else:
        SavedView.objects.update_or_create(
            user_id=int(request.user.pk or 0),
            name=form.cleaned_data["name"],
            defaults={"query": query},
        )
        messages.success(request, f"Saved as “{form.cleaned_data['name']}”.")
    return Redirect(f"{reverse(LIST)}?{query}")


def delete_view(request: HttpRequest, view_id: int) -> HttpResponse:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not may_open_windows(request.user):
        raise PermissionDenied
    gone, _ = SavedView.objects.filter(user=request.user.pk, pk=view_id).delete()
    if not gone:
        raise Http404("no such view")
    messages.success(request, "The view is deleted.")
    return Redirect(reverse(LIST))
