"""Saved views of the request list: names that a user gives to filter query strings."""

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
from proxy.permissions.row_permissions import can_open_admin

from .keyset_changelist import AFTER, BEFORE

MAX_VIEWS: Final = 50
LIST: Final = "admin:proxy_exchange_changelist"
PAGE_PARAMS: Final = frozenset({BEFORE, AFTER, "e", "p"})
"""Query parameters that select a page of the list; a saved view does not contain them."""


@dataclass(frozen=True, slots=True)
class SavedViewLink:
    pk: int
    name: str
    url: str
    current: bool


class ViewForm(forms.Form):
    name = forms.CharField(max_length=60)
    query = forms.CharField(max_length=2000, required=False)


def views_of(user: Any, query: str) -> Sequence[SavedViewLink]:
    """Return the user's saved views. ``query`` is the query string of the open page."""
    current = canonical_query(query)
    rows = SavedView.objects.filter(user=user.pk)[:MAX_VIEWS]
    return [SavedViewLink(row.pk, row.name, f"?{row.query}", row.query == current) for row in rows]


def canonical_query(query: str) -> str:
    """Return the query string with sorted parameters, without those that select a page."""
    pairs = parse_qsl(query.lstrip("?"), keep_blank_values=False)
    return urlencode(sorted((name, value) for name, value in pairs if name not in PAGE_PARAMS))


def save_view(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not can_open_admin(request.user):
        raise PermissionDenied
    form = ViewForm(request.POST)
    query = canonical_query(request.POST.get("query", "")[:2000])
    if not form.is_valid():
        messages.error(request, "A view needs a name of at most 60 characters.")
    elif SavedView.objects.filter(user=request.user.pk).count() >= MAX_VIEWS:
        messages.error(request, f"The limit is {MAX_VIEWS} views; delete one first.")
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
    if not can_open_admin(request.user):
        raise PermissionDenied
    deleted, _ = SavedView.objects.filter(user=request.user.pk, pk=view_id).delete()
    if not deleted:
        raise Http404("no such view")
    messages.success(request, "The view is deleted.")
    return Redirect(reverse(LIST))
