"""Saved views of the request list: names that a user gives to filter query strings."""

from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.http import HttpResponseRedirect as Redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from proxy.admin.core.pages import require_reader
from proxy.models import SavedView

from .keyset_changelist import PAGE_PARAMS

MAX_VIEWS: Final = 50
LIST: Final = "admin:proxy_exchange_changelist"
NOT_SAVED: Final = frozenset({*PAGE_PARAMS, "e", "p"})
"""Query parameters that select a page of the list; a saved view does not contain them."""


class ViewForm(forms.Form):
    name = forms.CharField(max_length=60)
    query = forms.CharField(max_length=2000, required=False)


def views_of(user: Any, current: str) -> list[dict[str, Any]]:
    """Return links to the user's saved views. ``current``: the open page's canonical query."""
    return [
        {"pk": row.pk, "name": row.name, "url": f"?{row.query}", "current": row.query == current}
        for row in SavedView.objects.filter(user=user.pk)[:MAX_VIEWS]
    ]


def canonical_query(query: str) -> str:
    """Return the query string with sorted parameters, without those that select a page."""
    pairs = parse_qsl(query.lstrip("?"), keep_blank_values=False)
    return urlencode(sorted((name, value) for name, value in pairs if name not in NOT_SAVED))


@require_POST
def save_view(request: HttpRequest) -> HttpResponse:
    require_reader(request)
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


@require_POST
def delete_view(request: HttpRequest, view_id: int) -> HttpResponse:
    require_reader(request)
    deleted, _ = SavedView.objects.filter(user=request.user.pk, pk=view_id).delete()
    if not deleted:
        raise Http404("no such view")
    messages.success(request, "The view is deleted.")
    return Redirect(reverse(LIST))
