"""“What would happen”: each door that a request with a key would meet now, and what is left."""

from typing import Any, Final

from django import forms
from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from proxy.admission import Fate, Finding, NotServing, Rehearsal, Wish, rehearse
from proxy.visibility import as_seen_by, reader_of_user, visible_keys

from .figures import UNKNOWN, dollars
from .headers import harden

MOST: Final = 10**9
WORDS: Final = {
    "revoked": "Key and user are active",
    "expired": "Key has not ended",
    "address": "Client's address",
    "scope": "Scope messages",
    "team_models": "Models of the team",
    "key_models": "Models of the key",
    "route": "Route",
    "price": "Price",
    "concurrency": "Requests at once",
    "rpm": "Requests a minute",
    "tpm": "Input tokens a minute",
    "budget": "Budget",
}
TONES: Final = {Fate.PASSES: "good", Fate.REFUSES: "bad", Fate.TELLS: "left", Fate.UNKNOWN: "other"}


class WishForm(forms.Form):
    model = forms.CharField(max_length=200, label="Model", initial="claude-sonnet-5")
    input_tokens = forms.IntegerField(min_value=0, max_value=MOST, label="Input", initial=1000)
    max_tokens = forms.IntegerField(min_value=1, max_value=MOST, label="max_tokens", initial=1000)
    ip = forms.GenericIPAddressField(required=False, label="From address")


@require_safe
def rehearsal_view(request: HttpRequest, key_id: int) -> HttpResponse:
    """Nothing is sent, counted or held: asking twice changes nothing."""
    reader = reader_of_user(request.user)
    key = visible_keys(reader).filter(pk=key_id).first()
    if key is None or not request.user.has_perm("proxy.view_apikey"):
        raise Http404("no such key")
    form = WishForm(request.GET if "model" in request.GET else None)
    told: Rehearsal | None = None
    away = ""
    if form.is_valid():
        try:
            found = rehearse(Wish(key_id=key.pk, **form.cleaned_data))
            told = as_seen_by(reader, key, found)
        except NotServing as exc:
            away = str(exc)
    context = {
        **admin.site.each_context(request),
        "title": f"What would happen with {key}",
        "key": key,
        "form": form,
        "away": away,
        "told": told and _shown(told),
    }
    return harden(TemplateResponse(request, "admin/proxy/apikey/rehearsal.html", context))


def _shown(told: Rehearsal) -> dict[str, Any]:
    refused = told.refused_by
    return {
        "refused": refused and f"{refused.door.status} {refused.door.error}",
        "by": refused and f"{_title(refused)}, {refused.of}",
        "route": told.route or UNKNOWN,
        "targets": ", ".join(told.targets) or UNKNOWN,
        "worst": dollars(told.worst_case),
        "doors": [_line(one) for one in told.findings],
    }


def _title(one: Finding) -> str:
    return WORDS.get(one.door.name) or WORDS[one.door.name.rpartition("_")[2]]


def _line(one: Finding) -> dict[str, Any]:
    def figure(count: int | None) -> str:
        if count is None:
            return UNKNOWN
        return dollars(count) if one.money else f"{count:,}"

    period = f" a {one.period}" if one.period else ""
    return {
        "title": _title(one),
        "of": one.of,
        "fate": one.fate.value,
        "tone": TONES[one.fate],
        "limit": f"{figure(one.limit)}{period}" if one.limit is not None else UNKNOWN,
        "used": figure(one.used),
        "left": figure(one.left),
        "takes": figure(one.takes),
        "resets": one.resets,
    }
