"""“Test this upstream”: asks it two small questions and shows what it really answers, as text."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_http_methods

from proxy.audit_trail import note
from proxy.models import RouteTarget, Upstream
from proxy.probing import QUESTIONS, Finding, probe
from proxy.secrets import ConfigError
from proxy.write_permissions import may_probe
from translator.errors import TranslatorError

from .clips import printable
from .figures import duration
from .headers import harden


class ProbeForm(forms.Form):
    model = forms.CharField(
        max_length=200,
        label="Model",
        help_text="As the upstream names it.",
        widget=forms.TextInput(attrs={"list": "models", "autocomplete": "off"}),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def probe_view(request: HttpRequest, upstream_id: int) -> HttpResponse:
    """GET only asks which model; POST puts the questions."""
    if not may_probe(request.user):
        raise PermissionDenied
    upstream = Upstream.objects.filter(pk=upstream_id).first()
    if upstream is None:
        raise Http404("no such upstream")
    models = _models_of(upstream)
    form = ProbeForm(request.POST or None, initial={"model": models[0] if models else ""})
    findings: Sequence[Finding] = ()
    wrong = ""
    if request.method == "POST" and form.is_valid():
        findings, wrong = _asked(upstream, form.cleaned_data["model"])
        note(request.user, upstream, _told(form.cleaned_data["model"], findings, wrong))
    context = {
        **admin.site.each_context(request),
        "title": f"Test {upstream}",
        "upstream": upstream,
        "form": form,
        "models": models,
        "questions": QUESTIONS,
        "findings": [_shown(one) for one in findings],
        "wrong": wrong,
    }
    return harden(TemplateResponse(request, "admin/proxy/upstream/probe.html", context))


def _models_of(upstream: Upstream) -> list[str]:
    """The models that routes ask it for; names that stand for whatever the client said are none."""
    named = RouteTarget.objects.filter(upstream=upstream).exclude(model__in=("", "*"))
    return sorted(set(named.values_list("model", flat=True)))[:50]


def _asked(upstream: Upstream, model: str) -> tuple[Sequence[Finding], str]:
    """The findings; or why nothing could be asked."""
    try:
        return probe(upstream, model), ""
    except ValidationError as exc:
        return (), " ".join(exc.messages)
    except (ConfigError, TranslatorError, LookupError, ValueError) as exc:
        return (), str(exc)


def _told(model: str, findings: Sequence[Finding], wrong: str) -> str:
    """For the audit trail: what was asked, and how it went."""
    said = "; ".join(
        f"{one.question.name} {one.status or 'no answer'} in {duration(one.total_ms)}: "
        f"{'passed' if one.ok else 'failed'}"
        for one in findings
    )
    return f"Tested with the model {model[:80]}: {said or f'not asked, {wrong[:200]}'}."


def _shown(one: Finding) -> dict[str, Any]:
    return {
        "title": one.question.title,
        "ok": one.ok,
        "says": printable(one.says),
        "answer": printable(one.answer),
        "status": one.status,
        "head": duration(one.head_ms),
        "first": duration(one.first_ms),
        "total": duration(one.total_ms),
        "reads": one.reads,
        "sides": [
            (title, printable(text))
            for title, text in (
                ("Sent", one.sent),
                ("Heard", one.heard),
                ("What a client is told", one.told),
            )
        ],
    }
