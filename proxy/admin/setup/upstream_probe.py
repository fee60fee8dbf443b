"""“Test this upstream”: send two small requests to an upstream, and show its responses as text."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_http_methods

from proxy.admin.core.csp_middleware import set_security_headers
from proxy.admin.core.number_format import duration
from proxy.admin.transcript.truncation import printable
from proxy.audit_log import Action, record
from proxy.models import RouteTarget, Upstream
from proxy.permissions.write_permissions import may_probe
from proxy.secrets import ConfigError
from proxy.upstream_probe import QUESTIONS, Finding, probe
from translator.errors import TranslatorError


class ProbeForm(forms.Form):
    model = forms.CharField(
        max_length=200,
        label="Model",
        help_text="As the upstream names it.",
        widget=forms.TextInput(attrs={"list": "models", "autocomplete": "off"}),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def probe_view(request: HttpRequest, upstream_id: int) -> HttpResponse:
    """Show the form (GET), or send the test requests and show the responses (POST)."""
    if not may_probe(request.user):
        raise PermissionDenied
    upstream = Upstream.objects.filter(pk=upstream_id).first()
    if upstream is None:
        raise Http404("no such upstream")
    models = _models_of(upstream)
    form = ProbeForm(request.POST or None, initial={"model": models[0] if models else ""})
    findings: Sequence[Finding] = ()
    error = ""
    if request.method == "POST" and form.is_valid():
        findings, error = _run_probe(upstream, form.cleaned_data["model"])
        record(
            Action.TEST,
            upstream,
            detail=_audit_detail(form.cleaned_data["model"], findings, error),
        )
    context = {
        **admin.site.each_context(request),
        "title": f"Test {upstream}",
        "upstream": upstream,
        "form": form,
        "models": models,
        "questions": QUESTIONS,
        "findings": [_finding_context(finding) for finding in findings],
        "error": error,
    }
    return set_security_headers(
        TemplateResponse(request, "admin/proxy/upstream/probe.html", context)
    )


def _models_of(upstream: Upstream) -> list[str]:
    """Return the upstream models that routes to this upstream name, without wildcards."""
    named = RouteTarget.objects.filter(upstream=upstream).exclude(model__in=("", "*"))
    return sorted(set(named.values_list("model", flat=True)))[:50]


def _run_probe(upstream: Upstream, model: str) -> tuple[Sequence[Finding], str]:
    """Return a finding (result) for each test request, or the reason why none was sent."""
    try:
        return probe(upstream, model), ""
    except ValidationError as exc:
        return (), " ".join(exc.messages)
    except (ConfigError, TranslatorError, LookupError, ValueError) as exc:
        return (), str(exc)


def _audit_detail(model: str, findings: Sequence[Finding], error: str) -> str:
    """Return the detail of the audit entry: the model and the result of each test request."""
    results = "; ".join(
        f"{finding.question.name} {finding.status or 'no response'} in "
        f"{duration(finding.total_ms)}: "
        f"{'passed' if finding.ok else 'failed'}"
        for finding in findings
    )
    return f"model {model[:80]}: {results or f'no request sent, {error[:200]}'}"


def _finding_context(finding: Finding) -> dict[str, Any]:
    return {
        "title": finding.question.title,
        "ok": finding.ok,
        "result": printable(finding.summary),
        "answer": printable(finding.answer),
        "status": finding.status,
        "head": duration(finding.head_ms),
        "first": duration(finding.first_ms),
        "total": duration(finding.total_ms),
        "reads": finding.reads,
        "sides": [
            (title, printable(text))
            for title, text in (
                ("Request", finding.sent),
                ("Response", finding.received),
                ("Response to a client", finding.client_events),
            )
        ],
    }
